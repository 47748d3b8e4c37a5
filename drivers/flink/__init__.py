"""Apache Flink 2.x (and 1.x from 1.13 on), unmodified."""
