/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Flushers: helper threads that hand on what one operator has made, each by a timer of its own.
 *
 * Engines collect in buffers what an operator makes, and hand a buffer on when it is full or when
 * its time is up (Flink's buffer timeout, 100 ms by default). A flusher whose timer rings while its
 * operator is at work hands on half a batch, and the rest waits for a whole period. Such a timer counts
 * from when the thread has flushed; so who waits for the end of the batch once comes right after it
 * from then on, until the two drift apart.
 *
 * So a flusher is held back while its operator works, and nothing is guessed:
 *  - its own timer has woken it: the wake-up came in a hardware interrupt, as those of high resolution
 *    timers do. Who was woken by another thread may just have been handed a lock, and is never held;
 *    nor is anybody where the kernel does not tell what it is doing (compat.bpf.h);
 *  - the operator wants the CPU now, and has worked for less than two of its usual batches;
 *  - for what is left of these two batches, at most a quarter of the timer's period, and 20 ms.
 * An ingress works when something comes in, by no clock of ours: its flusher is left alone, as is for a
 * while one that was held in vain several times.
 *
 * Held flushers wait in a queue of their own. Who lets them go is the CPU on which the operator goes
 * to sleep, else a timer; if that cannot be started nobody is held, and any CPU that has work lets those
 * go that are (`end_late_holds`).
 */
#ifndef SCHED_CTL_FLUSHERS_BPF_H
#define SCHED_CTL_FLUSHERS_BPF_H

#include "kernel.bpf.h"
#include "sched_ctl.h"
#include "compat.bpf.h"
#include "state.bpf.h"
#include "queues.bpf.h"
#include "fair.bpf.h"
#include "others.bpf.h"

#define LEAST_PERIOD (4 * MS)		/* what wakes up more often is worth nothing */
#define MOST_PERIOD (10000 * MS)
#define HOLDS_GO_ON (100 * MS)
#define MOST_HOLD (20 * MS)
#define HOLDS_LATE (5 * MS)

enum {
	HOLD_PART = 4,			/* of its period a flusher is held at most ... */
	MOST_BATCHES = 2,		/* ... and until its operator has worked for so many batches */
	MOST_HELD = 64,			/* that one look lets go */
	MOST_MISSES = 20,		/* in a row ... */
	LONG_MISS = 5,			/* ... of which one that took long counts so much */
	INGRESS_DEPTH = 1,		/* depth of an operator that none of ours feeds */
	REST_PERIODS = 100,		/* without any try after that */
};

struct hold {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct hold);
} holds SEC(".maps");

u64 hold_ends_ns;			/* when the timer rings; 0 = it does not */
u64 last_hold_ns;

/* What is kept of a flusher of one of our operators; NULL = it is none. */
static __always_inline struct adoption *flusher(struct task_struct *p)
{
	struct adoption *a;

	if (!control.hold_us || !hints_valid)
		return NULL;
	a = bpf_task_storage_get(&adopted, p, 0, 0);
	return a && a->flushes ? a : NULL;
}

/*
 * The time from a flush until the timer rings. A stop of the whole process, as for a collector, makes
 * that longer once or shorter once: what is far longer counts as twice the period.
 */
static __always_inline u64 period_of(struct adoption *a, u64 slept_ns)
{
	u32 us = slept_ns / 1024;

	if (a->period_us && us / 2 > a->period_us)
		us = 2 * a->period_us;
	if (!a->period_us)
		a->period_us = us;
	else if (us < a->period_us)
		a->period_us -= (a->period_us - us) / 8;
	else
		a->period_us += (us - a->period_us) / 2;
	return (u64)a->period_us * 1024;
}

/* For how long a flusher that its timer has woken is to wait; 0 = not at all. */
static __always_inline u64 hold_for(struct adoption *a, u64 now_ns)
{
	u32 slot = a->flushes & (MAX_SLOTS - 1);
	struct thread *t = &threads[slot];
	u64 slept_ns = now_ns - a->flushed_ns, period_ns, worked_ns, left_ns;

	if (!(slots[slot].flags & SLOT_ACTIVE) || slots[slot].depth == INGRESS_DEPTH ||
	    (s64)slept_ns < LEAST_PERIOD || (s64)slept_ns > MOST_PERIOD)
		return 0;
	period_ns = period_of(a, slept_ns);
	if (a->misses >= MOST_MISSES) {
		a->misses = a->misses < MOST_MISSES + REST_PERIODS ? a->misses + 1 : 0;
		return 0;
	}
	worked_ns = t->run_ns - t->woken_run_ns;
	left_ns = (u64)t->burst_ns * MOST_BATCHES;
	if (!t->weight || worked_ns >= left_ns)
		return 0;
	left_ns -= worked_ns;
	if (left_ns > period_ns / HOLD_PART)
		left_ns = period_ns / HOLD_PART;
	return left_ns < MOST_HOLD ? left_ns : MOST_HOLD;
}

/* Is there a timer that lets go of who is held for so long? */
static __always_inline bool let_go_after(u64 left_ns, u64 now_ns)
{
	struct hold *hold;
	u32 zero = 0;

	hold = bpf_map_lookup_elem(&holds, &zero);
	if (!hold)
		return false;
	hold_ends_ns = now_ns + left_ns;
	if (control.fault != FAULT_TIMERS && !bpf_timer_start(&hold->timer, left_ns, 0))
		return true;
	hold_ends_ns = 0;
	count(no_timers);
	return false;
}

/* One of the others woke up. Returns whether it was put aside. */
static __always_inline bool hold_flusher(struct task_struct *p, u64 enq_flags)
{
	struct adoption *a = flusher(p);
	u64 now_ns, left_ns;

	if (!a)
		return false;
	now_ns = clock_ns();
	left_ns = in_hard_interrupt() ? hold_for(a, now_ns) : 0;
	if (left_ns > control.hold_us * US)
		left_ns = control.hold_us * US;
	last_hold_ns = now_ns;
	if (!left_ns || ((!hold_ends_ns || (s64)(hold_ends_ns - now_ns - left_ns) > 0) &&
			 !let_go_after(left_ns, now_ns))) {
		a->flushed_ns = now_ns;
		return false;
	}
	count(held);
	a->held_ns = left_ns;
	a->until_ns = now_ns + left_ns;
	threads[a->flushes & (MAX_SLOTS - 1)].held = 1;
	set_vtime(p, others_start(p, true));
	dsq_insert(p, HELD_DSQ, others_slice_ns(), enq_flags);
	return true;
}

/* The operator in this slot goes to sleep: its flushers' turn. */
subprogram int let_go(u32 slot, u64 now_ns)
{
	struct bpf_iter_scx_dsq it;
	struct adoption *a;
	struct task_struct *p;
	u32 llc, i;

	slot &= MAX_SLOTS - 1;
	threads[slot].held = 0;
	bpf_rcu_read_lock();
	bpf_iter_scx_dsq_new(&it, HELD_DSQ, 0);
	for (i = unknown_zero; i < MOST_HELD && (p = bpf_iter_scx_dsq_next(&it)); i++) {
		a = bpf_task_storage_get(&adopted, p, 0, 0);
		if (!a || a->flushes != slot)
			continue;
		a->misses = 0;
		a->flushed_ns = now_ns;
		llc = llc_of(scx_bpf_task_cpu(p));
		mark_other(llc, p, p->scx.dsq_vtime);
		if (dsq_move_vtime(&it, p, others_dsq(llc)))
			kick_idle(p);
	}
	bpf_iter_scx_dsq_destroy(&it);
	bpf_rcu_read_unlock();
	return 0;
}

/* Let those go whose time is up. Returns when to look again, ns from now; 0 = nobody is held. */
subprogram u64 end_some(u64 now_ns)
{
	u64 left_ns = 0, its_ns;
	struct bpf_iter_scx_dsq it;
	struct adoption *a;
	struct task_struct *p;
	struct cpu *c;
	u32 cpu, i;

	bpf_rcu_read_lock();
	bpf_iter_scx_dsq_new(&it, HELD_DSQ, 0);
	for (i = unknown_zero; i < MOST_HELD && (p = bpf_iter_scx_dsq_next(&it)); i++) {
		a = bpf_task_storage_get(&adopted, p, 0, 0);
		its_ns = a ? a->until_ns - now_ns : 0;
		if ((s64)its_ns > 0) {
			if (!left_ns || its_ns < left_ns)
				left_ns = its_ns;
			continue;
		}
		if (a) {
			if (a->misses < MOST_MISSES)
				a->misses += a->held_ns * 8 > (u64)a->period_us * 1024 ? LONG_MISS : 1;
			a->flushed_ns = now_ns;
		}
		count(held_in_vain);
		cpu = scx_bpf_task_cpu(p);
		c = &cpus[cpu & (MAX_CPUS - 1)];
		mark_other(llc_of(cpu), p, p->scx.dsq_vtime);
		if (!dsq_move_vtime(&it, p, others_dsq(llc_of(cpu))) || kick_idle(p))
			continue;
		if (c->tier == TIER_NONE)
			scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
		else
			interrupt(cpu, now_ns - c->turn_ns, base_slice_us * US);
	}
	bpf_iter_scx_dsq_destroy(&it);
	bpf_rcu_read_unlock();
	return i == MOST_HELD ? MS : left_ns;
}

/* Their time is up. */
static int end_holds(void *map, int *key, struct bpf_timer *timer)
{
	u64 now_ns = clock_ns(), left_ns;

	__sync_lock_test_and_set(&hold_ends_ns, 0);
	left_ns = end_some(now_ns);
	/* One that was held just now may not be in the queue yet. */
	if (!left_ns && (s64)(now_ns - last_hold_ns) < HOLDS_GO_ON)
		left_ns = MOST_HOLD;
	if (left_ns)
		let_go_after(left_ns, now_ns);
	return 0;
}

/* Without a timer, or if that is late. */
static __always_inline void end_late_holds(u64 now_ns)
{
	if ((s64)(now_ns - hold_ends_ns - HOLDS_LATE) > 0 && scx_bpf_dsq_nr_queued(HELD_DSQ) > 0)
		end_some(now_ns);
}

static __always_inline int flushers_init(void)
{
	struct hold *hold;
	u32 zero = 0;

	hold = bpf_map_lookup_elem(&holds, &zero);
	if (!hold)
		return -2;		/* ENOENT */
	return ready(bpf_timer_init(&hold->timer, &holds, CLOCK_MONOTONIC)) ?:
	       bpf_timer_set_callback(&hold->timer, end_holds) ?:
	       scx_bpf_create_dsq(HELD_DSQ, -1);
}

#endif
