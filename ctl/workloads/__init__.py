"""Workload files: queries as graphs, for the lab engine, the simulator and the benchmarks."""
