/* SPDX-License-Identifier: GPL-2.0-only */
/* What the program that logs runs and whoever reads it share; see runs.bpf.c. */
#ifndef SCHED_CTL_RUNS_H
#define SCHED_CTL_RUNS_H

enum {
	RUNS_IDS = 1 << 22,		/* process ids, PID_MAX_LIMIT in linux/threads.h */
	RUNS_KEPT = 1 << 18,		/* events; what comes after them is left out */
};

enum run_event { RUN_SWITCH = 1, RUN_PREEMPTED, RUN_WAKING };

/*
 * A CPU went from one thread to another, which sleeps (RUN_SWITCH) or would run on (RUN_PREEMPTED); or
 * `from` wakes `to` (RUN_WAKING; 0 = an interrupt). Thread ids; 0 = the idle task.
 */
struct run {
	u64 at_ns;			/* CLOCK_MONOTONIC */
	u32 from;
	u32 to;
	u32 cpu;
	u32 what;			/* enum run_event; 0 = not written yet */
};

#endif
