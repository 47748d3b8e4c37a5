/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Flushers: helper threads that hand on what one operator has made, each by a timer of its own.
 *
 * Engines collect in buffers what an operator makes, and hand a buffer on when it is full or when
 * its time is up (Flink's buffer timeout, 100 ms by default). A tuple waits for the flusher of each
 * operator on its way, and how their timers lie to each other decides for how long: half a timeout
 * at each on average, and nearly a whole one where each rings just before the one that it waits
 * for. Such a timer counts from when the thread has flushed. So who flushes later once does from
 * then on, and the best moment is right after the operator has done what the flusher before it
 * handed on: then a tuple waits for one timer instead of for all.
 *
 * So a flusher is held back
 *  - while its operator works: what comes of that would wait for a whole period else;
 *  - when its operator has gone to sleep a while ago, as long ago as the last two times: until that
 *    has worked again, which should be one period after the last time. What there is to hand on has
 *    waited for one period then, the timeout that the engine promises, this once.
 * From then on it wakes up shortly before its operator goes to sleep, or shortly after. Nobody is
 * held who has nothing to hand on, for that would move its timer for nothing; nor where the operator
 * has just finished (batches differ in length, and the timer goes by the longest), or works for
 * longer than a third of the period. An ingress works when something comes in, by no clock of ours:
 * its flusher is left alone, as is for a while one that was held in vain several times.
 *
 * Held flushers wait in a queue of their own. Who lets them go is the CPU on which the operator goes
 * to sleep, else a timer.
 */
#ifndef SCHED_CTL_FLUSHERS_BPF_H
#define SCHED_CTL_FLUSHERS_BPF_H

#define LEAST_PERIOD (4 * MS)		/* what wakes up more often waits for locks, or is worth nothing */
#define MOST_PERIOD (10000 * MS)
#define HOLDS_GO_ON (100 * MS)

enum {
	STEPS = 10,			/* of a period: how exact it is to be */
	SAME = 16,			/* times that differ by such a part of a period are the same ... */
	REPEATS = 2,			/* ... so often: of batches that have no clock few are, by chance */
	MOST_WORK = 2,			/* for such a part of a period it waits for one that works ... */
	MOST_BURST = 3,			/* ... if that mostly takes no more than this part */
	JUST_NOW = 2,			/* so many batches ago, and a step */
	MOST_MISSES = 20,		/* in a row ... */
	LONG_MISS = 5,			/* ... of which one that took long counts so much */
	INGRESS = 1,			/* depth of an operator that none of ours feeds */
	REST = 100,			/* periods without any try after that */
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

/* For how long a flusher that wakes up is to wait; 0 = not at all. */
static __always_inline u64 hold_for(struct adoption *a, u64 now_ns)
{
	u32 slot = a->flushes & (MAX_SLOTS - 1);
	struct thread *t = &threads[slot];
	u64 slept_ns = now_ns - a->flushed_ns, period_ns, step_ns, since_ns, before_ns;

	if (!(slots[slot].flags & SLOT_ACTIVE) || slots[slot].depth == INGRESS ||
	    (s64)slept_ns < LEAST_PERIOD || (s64)slept_ns > MOST_PERIOD)
		return 0;
	period_ns = period_of(a, slept_ns);
	step_ns = period_ns / STEPS;
	if (a->misses >= MOST_MISSES) {
		a->misses = a->misses < MOST_MISSES + REST ? a->misses + 1 : 0;
		return 0;
	}
	if (t->burst_ns > period_ns / MOST_BURST)
		return 0;
	if (t->weight) {
		if (t->run_ns - t->woken_run_ns > period_ns / MOST_WORK)
			return 0;
		return period_ns / MOST_WORK;
	}
	if ((s64)(t->slept_ns - a->flushed_ns) <= 0)
		return 0;		/* nothing was made since */
	since_ns = now_ns - t->slept_ns;
	if (since_ns + step_ns >= period_ns)
		return 2 * step_ns;
	before_ns = a->since_ns;
	a->since_ns = since_ns;
	if (since_ns <= step_ns + JUST_NOW * t->burst_ns ||
	    since_ns - before_ns + period_ns / SAME > 2 * period_ns / SAME) {
		a->repeats = 0;
		return 0;
	}
	if (++a->repeats < REPEATS)
		return 0;
	a->repeats = 0;
	return period_ns - since_ns + t->burst_ns + step_ns / 2;	/* where it would be left alone */
}

static __always_inline void let_go_after(u64 left_ns, u64 now_ns)
{
	struct hold *hold;
	u32 zero = 0;

	hold = bpf_map_lookup_elem(&holds, &zero);
	if (!hold)
		return;
	hold_ends_ns = now_ns + left_ns;
	bpf_timer_start(&hold->timer, left_ns, 0);
}

/* One of the others woke up. Returns whether it was put aside. */
static __always_inline bool hold_flusher(struct task_struct *p, u64 enq_flags)
{
	struct adoption *a = flusher(p);
	u64 now_ns, left_ns;

	if (!a)
		return false;
	now_ns = clock_ns();
	left_ns = hold_for(a, now_ns);
	if (left_ns > control.hold_us * US)
		left_ns = control.hold_us * US;
	if (!left_ns) {
		a->flushed_ns = now_ns;
		return false;
	}
	count(held);
	a->held_ns = left_ns;
	a->until_ns = now_ns + left_ns;
	threads[a->flushes & (MAX_SLOTS - 1)].held = 1;
	last_hold_ns = now_ns;
	set_vtime(p, others_start(p, true));
	dsq_insert(p, HELD_DSQ, others_slice_ns(), enq_flags);
	if (!hold_ends_ns || (s64)(hold_ends_ns - a->until_ns) > 0)
		let_go_after(left_ns, now_ns);
	return true;
}

/* The operator in this slot goes to sleep: its flushers' turn. */
subprogram int let_go(u32 slot, u64 now_ns)
{
	struct bpf_iter_scx_dsq it;
	struct adoption *a;
	struct task_struct *p;
	u32 llc;

	slot &= MAX_SLOTS - 1;
	threads[slot].held = 0;
	bpf_rcu_read_lock();
	bpf_iter_scx_dsq_new(&it, HELD_DSQ, 0);
	while ((p = bpf_iter_scx_dsq_next(&it))) {
		a = bpf_task_storage_get(&adopted, p, 0, 0);
		if (!a || a->flushes != slot)
			continue;
		a->misses = 0;
		a->flushed_ns = now_ns;
		llc = llc_of(scx_bpf_task_cpu(p));
		mark_other(llc, p, p->scx.dsq_vtime);
		dsq_move_vtime(&it, p, others_dsq(llc));
	}
	bpf_iter_scx_dsq_destroy(&it);
	bpf_rcu_read_unlock();
	return 0;
}

/* Their time is up. */
static int end_holds(void *map, int *key, struct bpf_timer *timer)
{
	u64 now_ns = clock_ns(), left_ns = HOLDS_GO_ON;
	struct bpf_iter_scx_dsq it;
	struct adoption *a;
	struct task_struct *p;
	struct cpu *c;
	u32 cpu;

	hold_ends_ns = 0;
	bpf_rcu_read_lock();
	bpf_iter_scx_dsq_new(&it, HELD_DSQ, 0);
	while ((p = bpf_iter_scx_dsq_next(&it))) {
		a = bpf_task_storage_get(&adopted, p, 0, 0);
		if (a && (s64)(a->until_ns - now_ns) > 0) {
			if (a->until_ns - now_ns < left_ns)
				left_ns = a->until_ns - now_ns;
			continue;
		}
		if (a) {
			if (a->misses < MOST_MISSES)
				a->misses += a->held_ns * 4 > (u64)a->period_us * 1024 ? LONG_MISS : 1;
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
			interrupt(cpu, now_ns, now_ns - c->turn_ns, base_slice_us * US);
	}
	bpf_iter_scx_dsq_destroy(&it);
	bpf_rcu_read_unlock();
	/* One that was held just now may not be in the queue yet. */
	if (scx_bpf_dsq_nr_queued(HELD_DSQ) > 0 || (s64)(now_ns - last_hold_ns) < HOLDS_GO_ON)
		let_go_after(left_ns < 20 * MS ? left_ns : 20 * MS, now_ns);
	return 0;
}

static __always_inline int flushers_init(void)
{
	struct hold *hold;
	u32 zero = 0;

	hold = bpf_map_lookup_elem(&holds, &zero);
	if (!hold)
		return -2;		/* ENOENT */
	bpf_timer_init(&hold->timer, &holds, CLOCK_MONOTONIC);
	bpf_timer_set_callback(&hold->timer, end_holds);
	return scx_bpf_create_dsq(HELD_DSQ, -1);
}

#endif
