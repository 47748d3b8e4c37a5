/* SPDX-License-Identifier: GPL-2.0-only */
/* What the program that keeps stacks of sleeps and whoever reads it share; see stacks.bpf.c. */
#ifndef SCHED_CTL_STACKS_H
#define SCHED_CTL_STACKS_H

enum {
	STACKS_IDS = 1 << 22,		/* process ids, PID_MAX_LIMIT in linux/threads.h */
	STACKS_SLEEPERS = 16384,	/* asleep at one time; beyond, who fell asleep longest ago is lost */
	STACKS_SLEEPS = 16384,		/* kinds of sleeps; beyond, the rarest are lost */
	STACKS_KEPT = 8192,		/* different stacks */
	STACKS_DEPTH = 127,		/* PERF_MAX_STACK_DEPTH, linux/perf_event.h */
};

/* One kind of sleep: numbers of stacks, negative where there was none or no room. */
struct sleep_kind {
	u32 tid;
	u32 waker;			/* thread id; 0 = an interrupt */
	s32 kernel;			/* of the sleeper */
	s32 user;
	s32 waker_kernel;
	s32 waker_user;
};

struct sleep_sum {
	u64 ns;				/* until it was woken */
	u64 times;
};

#endif
