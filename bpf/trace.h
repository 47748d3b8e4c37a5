/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the tracing program and whoever reads it share. Python reads the layout from the object's
 * BTF.
 */
#ifndef SCHED_CTL_TRACE_H
#define SCHED_CTL_TRACE_H

enum {
	TRACE_IDS = 1 << 22,		/* process and thread ids, PID_MAX_LIMIT in linux/threads.h */
	TRACE_THREADS = 16384,		/* beyond, those that were first seen longest ago are lost */
	TRACE_PAIRS = 65536,
	TRACE_RUNS = 32,		/* that a CPU remembers; a power of two */
	TRACE_SLOTS = 32,		/* of a histogram; the last one is for 18 minutes and more */
};

/* One thread, since it was first seen. */
struct waits {
	u64 born_ns;			/* when it was started (CLOCK_BOOTTIME): ids are used again */
	u64 awake_ns;			/* since when it has not slept; 0 = it sleeps; if `graph` */
	u64 wait_ns;			/* it waited for a CPU, all waits that have ended */
	u64 delay_ns;			/* as the kernel counts that */
	u64 turns;			/* it has had, as the kernel counts them, up to the last one seen */
	u64 wakeups;			/* it was woken; this and the next two only if `graph` */
	u64 wakes;			/* it woke another thread that is followed */
	u64 woken;			/* by `waker` one after the other, not yet in `wakings` */
	u64 behind_ns;			/* it waited behind `behind`, not yet in `occupants` */
	u32 waker;			/* who woke it last; 0 = of no process that is followed */
	u32 behind;			/* who ran last while it waited; 0 = the idle task */
	u32 tid;			/* 0 = nobody has this place */
	u64 slots[TRACE_SLOTS];		/* waits shorter than 1, 2, 4 ... times 1024 ns */
};

/* Who woke whom (how often), and who ran while another waited (for how many ns). */
struct pair {
	u32 from;			/* thread id; 0 = of no process that is followed, or the idle task */
	u32 to;
};

#endif
