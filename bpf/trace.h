/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the tracing program and whoever reads it share. Python reads the layout from the object's
 * BTF.
 */
#ifndef SCHED_CTL_TRACE_H
#define SCHED_CTL_TRACE_H

enum {
	TRACE_THREADS = 16384,		/* beyond, those that were quiet longest are lost */
	TRACE_PAIRS = 65536,
	TRACE_RUNS = 32,		/* that a CPU remembers; a power of two */
	TRACE_SLOTS = 24,		/* of a histogram; the last one is for 4 s and more */
};

/* One thread, since it was first seen. */
struct waits {
	u64 ready_ns;			/* since when it could run and does not; 0 = it cannot */
	u64 wait_ns;			/* it waited for a CPU, all waits that have ended */
	u64 turns;			/* waits that have ended */
	u64 wakeups;			/* it was woken */
	u64 wakes;			/* it woke another thread of the process */
	u64 on_cpu;			/* 1 while it runs */
	u64 slots[TRACE_SLOTS];		/* waits shorter than 1, 2, 4 ... us */
};

/* Who woke whom (how often), and who ran while another waited (for how many ns). */
struct pair {
	u32 from;			/* thread id; 0 = of another process, or the idle task */
	u32 to;
};

#endif
