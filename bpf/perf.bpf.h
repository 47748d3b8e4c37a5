/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How fast each CPU is to be.
 *
 * The kernel asks every CPU of a sched_ext scheduler for its highest performance unless that says what
 * it needs, and the governor schedutil follows: a machine on which next to nothing runs would run at
 * its full clock. So each CPU is asked for what it is used, operators and others alike: the average that
 * the fair class keeps of its own threads, which halves in 32 ms (kernel/sched/pelt.c). schedutil adds
 * its head room to it as it does to that, and in partial mode that of the fair class itself.
 *
 * A CPU that idles does nothing, and its use stays what it was. While another one is busy that takes
 * note for it, as where they share a clock the highest counts. From a timer: with its run queue locked a
 * CPU may set no other's.
 *
 * Other governors do not ask. No watt was measured.
 */
#ifndef SCHED_CTL_PERF_BPF_H
#define SCHED_CTL_PERF_BPF_H

#include "kernel.bpf.h"
#include "sched_ctl.h"
#include "compat.bpf.h"
#include "state.bpf.h"
#include "queues.bpf.h"
#include "others.bpf.h"

#define PERF_EVERY (4 * MS)
#define PERF_FAR_EVERY (20 * MS)
#define PERF_PERIOD (1024 * 1024ULL)	/* a 32nd of the time in which the average halves */

enum { PERF_ONE = 1024, PERF_FINE = 64, PERF_STEP = 8 };

/* 2^16 / 2^(i / 32) */
const volatile u32 halves[32] = {
	65536, 64132, 62757, 61413, 60097, 58809, 57549, 56316,
	55109, 53928, 52773, 51642, 50535, 49452, 48393, 47356,
	46341, 45348, 44376, 43425, 42495, 41584, 40693, 39821,
	38968, 38133, 37316, 36516, 35734, 34968, 34219, 33486,
};

struct usage {
	u64 since_ns;			/* when the average was worked out */
	u64 at_ns;			/* up to when it is known what the CPU did */
	u64 busy_ns;			/* of that, since since_ns */
	u32 use;			/* the average, PERF_ONE * PERF_FINE = all the time */
	u32 target;			/* what was asked for */
	u32 seen;			/* what the kernel has noted */
} LINES;
struct usage usages[MAX_CPUS];

struct slowdown {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct slowdown);
} slowdowns SEC(".maps");

u64 next_slowdown_ns;

/* Work the average out, and ask for it if it is another. */
subprogram int perf_ask(s32 cpu, u64 now_ns)
{
	struct usage *u = &usages[cpu & (MAX_CPUS - 1)];
	u64 passed_ns = now_ns - u->since_ns, periods = passed_ns / PERF_PERIOD, kept, busy;
	s32 target;

	kept = periods < 32 * 16 ? halves[periods & 31] >> (periods / 32) : 0;
	busy = u->busy_ns * PERF_ONE * PERF_FINE / (passed_ns ?: 1);
	u->use = (u->use * kept + busy * (65536 - kept)) >> 16;
	u->since_ns = now_ns;
	u->busy_ns = 0;
	target = (u->use + PERF_FINE / 2) / PERF_FINE;
	if (target > PERF_ONE)
		target = PERF_ONE;
	if (target - (s32)u->target < PERF_STEP && (s32)u->target - target < PERF_STEP)
		return 0;
	u->target = target;
	scx_bpf_cpuperf_set(cpu, target);
	u->seen = asked_for(cpu);
	return 1;
}

/* Up to now this CPU ran one of ours, or did not. */
static __always_inline void perf_note(s32 cpu, u64 now_ns, bool busy)
{
	struct usage *u = &usages[cpu & (MAX_CPUS - 1)];
	s64 passed_ns = now_ns - u->at_ns;

	if (!follow_use || passed_ns < 0)
		return;
	if (busy)
		u->busy_ns += passed_ns;
	u->at_ns = now_ns;
	if ((s64)(now_ns - u->since_ns - PERF_EVERY) >= 0)
		perf_ask(cpu, now_ns);
}

/* For those that have run none of ours for a while: nothing tells us that they do not. */
static int slow_down(void *map, int *key, struct bpf_timer *timer)
{
	u64 now_ns = clock_ns();
	u32 cpu;

	for_each_number(cpu, nr_cpus) {
		cpu &= MAX_CPUS - 1;
		if (cpus[cpu].tier == TIER_NONE && usages[cpu].target &&
		    (s64)(now_ns - usages[cpu].at_ns - PERF_FAR_EVERY) >= 0)
			perf_note(cpu, now_ns, false);
	}
	return 0;
}

/* Now and then, on a CPU that is not idle. If the timer cannot be started: the next time. */
static __always_inline void perf_of_idle(u64 now_ns)
{
	struct slowdown *s;
	u32 zero = 0;

	if (!follow_use || nr_cpus < 2 || (s64)(now_ns - next_slowdown_ns) < 0)
		return;
	next_slowdown_ns = now_ns + PERF_FAR_EVERY;
	s = bpf_map_lookup_elem(&slowdowns, &zero);
	if (s && bpf_timer_start(&s->timer, 0, 0))
		count(no_timers);
}

/* The kernel begins with the most. */
static __always_inline int perf_init(void)
{
	u64 now_ns = clock_ns();
	struct slowdown *s;
	u32 zero = 0, i;

	for_each_number(i, nr_cpus) {
		i &= MAX_CPUS - 1;
		usages[i].since_ns = usages[i].at_ns = now_ns;
		usages[i].use = PERF_ONE * PERF_FINE;
		usages[i].target = PERF_ONE;
	}
	s = bpf_map_lookup_elem(&slowdowns, &zero);
	if (!s)
		return -2;		/* ENOENT */
	return ready(bpf_timer_init(&s->timer, &slowdowns, CLOCK_MONOTONIC)) ?:
	       bpf_timer_set_callback(&s->timer, slow_down);
}

#endif
