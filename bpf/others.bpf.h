/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Everybody who is not an adopted operator: weighted fair among themselves, and a guaranteed
 * share of each CPU against the operators.
 *
 * Fair: one queue per last-level cache, ordered by virtual time (CPU time / weight by nice).
 *
 * Guaranteed: a token bucket per CPU. While operators run, the others earn guarantee_percent of
 * it; what they run is taken off. With QUANTUM of credit they go before any operator. Whatever
 * they get when no operator waits (leftovers) is taken off as well, down to -debt_ms: prepaid.
 * Without that prepayment a hog takes its share on top of all leftovers, which was measured to
 * cost operators at 80% load a factor of 2.5 in latency.
 *
 * CPU time that nobody else wanted is free: a thread that keeps a CPU for which no other waits is
 * not charged, and its virtual time follows that of the rest. Else the light hog of an idle CPU
 * would run years ahead, and `others_now`, from which woken threads start, with it; who wakes on
 * another CPU would then wait for its hogs to catch up. For the same reason a thread does not wake
 * further ahead than one slice, does not pay for more than MOST_SLICES in one (a virtual CPU that
 * its host holds back makes slices of any length), and others_now is never ahead of somebody who
 * waits.
 *
 * The lag of a thread is bounded when it wakes up only, but then always, also where it finds an
 * idle CPU and never queues: or who slept for a minute would go first for a minute once it has to
 * share. At slice end a bound would take from those who were kept waiting.
 *
 * Weights and the guarantee can make a wait long: many threads on 5% of a CPU, or one of nice 19
 * beside them. Whoever waits for other_starvation_ms runs next, the longest wait first: on each CPU
 * one each OTHERS_LOOK, and once somebody waited twice as long one each HURRIED_LOOK or, where operators
 * wait and turns are long, every second turn. With 4 ms a turn (starve.bpf.h) 3,750 that never sleep have
 * each one on a CPU before the kernel's watchdog would take one of them for a stall, whatever their
 * weights; with 3 ms, beside operators, 3,333.
 *
 * No CPU idles while a thread waits that may run there: whoever queues a thread, for whatever
 * reason, wakes an idle CPU for it. A CPU that goes idle at that very moment has had its last look, and
 * the kernel does not count it as idle yet; and as the kernel inserts a thread after our programs have
 * said where, one that was woken for it may come too early. For both, a busy CPU looks every 10 ms whether
 * some thread waits in vain (`rouse`). An ops.update_idle that looked once more left a thread bound to an
 * idle CPU without it for 45 s (6.18, two CPUs, nobody adopted).
 *
 * ops.dispatch runs before ops.stopping, so what `prev` has run so far is not in the bucket yet
 * when a decision is made: it is charged there by hand.
 */
#ifndef SCHED_CTL_OTHERS_BPF_H
#define SCHED_CTL_OTHERS_BPF_H

#include "kernel.bpf.h"
#include "sched_ctl.h"
#include "compat.bpf.h"
#include "state.bpf.h"
#include "queues.bpf.h"
#include "cgroups.bpf.h"
#include "fair.bpf.h"

#define QUANTUM (4 * MS)		/* credit that lets others go first */
#define MOST_CREDIT (20 * MS)

#define MOST_SLICES 4			/* that a thread pays for, however long it ran in one */
#define OTHERS_LOOK (50 * MS)
#define HURRIED_LOOK (8 * MS)

enum { ROUSE_DEPTH = 8, OTHERS_DEPTH = 2048, UNPARK_PIECES = 20 };

u64 first_jiffies, first_ns;		/* the same moment by both clocks, at load */
u64 starvation_jiffies;			/* other_starvation_ms; 0 = not known yet */

static __always_inline u64 others_slice_ns(void)
{
	return other_slice_us * US;
}

static __always_inline s64 earned(u64 ran_ns)
{
	return ran_ns * guarantee_percent / (100 - guarantee_percent);
}

static __always_inline u64 others_charge(struct task_struct *p, u64 ran_ns)
{
	u32 weight = p->scx.weight ?: 100;

	if (ran_ns > MOST_SLICES * others_slice_ns())
		ran_ns = MOST_SLICES * others_slice_ns();
	if (use_cgroups)
		return pack(cgroup_charge(group_of_thread(p), thread_weight(p), ran_ns) + 255, 0);
	/* Rounded up, or short runs would be free. */
	return pack(ran_ns * 100 / weight + 255, 0);
}

/* Of `prev`, which has run for so long since its vtime was written. */
static __always_inline u64 others_vtime(struct task_struct *prev, u64 ran_ns)
{
	u64 vtime = prev->scx.dsq_vtime;

	return (packed_slot(vtime) ? others_now : vtime) + others_charge(prev, ran_ns);
}

/* Its virtual time as it is queued, or put on a CPU at once. */
static __always_inline u64 others_start(struct task_struct *p, bool woken)
{
	u64 vtime = p->scx.dsq_vtime, least = others_now - pack(lag_ns(), 0), most;

	if (packed_slot(vtime))
		return others_now;	/* was an operator until now */
	if (woken && before(vtime, least))
		return least;
	/* Who ran ahead of the rest without sleeping owes them all of it. */
	if (!woken || !before(others_now, vtime))
		return vtime;
	most = others_now + others_charge(p, others_slice_ns());
	return before(most, vtime) ? most : vtime;
}

static __always_inline void queue_other(struct task_struct *p, u64 enq_flags)
{
	u64 vtime = others_start(p, enq_flags & SCX_ENQ_WAKEUP);
	u32 cpu = cpu_of(p), llc = llc_of(cpu);

	if (throttled(p, 0, clock_ns()) && unpark_later(clock_ns())) {
		count(parked);
		set_vtime(p, vtime);
		dsq_insert(p, PARKED_DSQ, others_slice_ns(), enq_flags);
		return;
	}
	if (use_cgroups && (enq_flags & SCX_ENQ_LAST)) {
		/* It may go on after all, and nobody would wake this CPU for it. */
		set_vtime(p, vtime);
		dsq_insert(p, SCX_DSQ_LOCAL, others_slice_ns(), enq_flags);
		return;
	}
	if (!operators_first && (enq_flags & SCX_ENQ_WAKEUP) &&
	    claim_for_other(vtime, cpu, clock_ns())) {
		count(preempts);
		count(guaranteed);
		set_vtime(p, vtime);
		dsq_insert(p, SCX_DSQ_LOCAL, others_slice_ns(), enq_flags | SCX_ENQ_PREEMPT);
		return;
	}
	mark_other(llc, p, vtime);
	dsq_insert_vtime(p, others_dsq(llc), others_slice_ns(), vtime, enq_flags);
}

/*
 * Put the first of the others that may run here on this CPU. Threads may be left that may not,
 * and another CPU may be about to insert one: `rouse` looks again.
 */
static __always_inline bool run_other(u32 llc)
{
	if (dsq_move_to_local(others_dsq(llc))) {
		mark_other_taken(llc);
		return true;
	}
	if (nr_cpus == 1 || scx_bpf_dsq_nr_queued(others_dsq(llc)) <= 0)
		mark_no_others(llc);
	return false;
}

/* The same, but one of another set, if that lags behind (caches.bpf.h). */
static __always_inline bool run_next_other(u32 llc, struct cpu *c)
{
	u32 from = c->from;

	if (nr_llcs > 1 && from) {
		c->from = 0;
		from = (from - 1) & (MAX_LLCS - 1);
		if (dsq_move_to_local(others_dsq(from))) {
			mark_other_taken(from);
			c->pulled = 1;
			count(other_pulls);
			return true;
		}
	}
	return run_other(llc);
}

/*
 * other_starvation_ms in jiffies; 0 = not known yet. The kernel notes since when a thread waits in
 * jiffies, whose rate is not told: it is measured in the first second.
 */
static __always_inline u64 bound_jiffies(u64 now_ns)
{
	if (!starvation_jiffies && (s64)(now_ns - first_ns - 1000 * MS) >= 0)
		starvation_jiffies = (bpf_jiffies64() - first_jiffies) * (other_starvation_ms * MS) /
				     (now_ns - first_ns) + 1;
	return starvation_jiffies;
}

/*
 * Put the one here that has waited longest, if that is beyond the bound, and say when to look again. It may
 * be anywhere in the queue: this goes through all of it or, where it is longer than OTHERS_DEPTH, through
 * what is at the one end and the other by turns.
 */
subprogram int rescue_other(u32 llc, s32 cpu, u64 now_ns)
{
	struct cpu *c = &cpus[cpu & (MAX_CPUS - 1)];
	u64 now = bpf_jiffies64(), bound = bound_jiffies(now_ns);
	s64 waited, longest = bound;
	struct task_struct *p, *found = NULL;
	struct bpf_iter_scx_dsq it;
	int moved = 0;
	u32 i;

	llc &= MAX_LLCS - 1;
	c->next_look_ns = now_ns + OTHERS_LOOK;
	if (!bound)
		return 0;
	bpf_iter_scx_dsq_new(&it, others_dsq(llc), c->from_tail ? SCX_DSQ_ITER_REV : 0);
	for (i = unknown_zero; i < OTHERS_DEPTH && (p = bpf_iter_scx_dsq_next(&it)); i++) {
		waited = now - p->scx.runnable_at;
		if (waited <= longest || !may_run(p, cpu))
			continue;
		longest = waited;
		found = p;
	}
	if (i >= OTHERS_DEPTH)
		c->from_tail ^= 1;
	if (found)
		moved = dsq_move(&it, found, SCX_DSQ_LOCAL);
	bpf_iter_scx_dsq_destroy(&it);
	if (!found)
		return 0;
	if (!moved || longest > 2 * bound)	/* another CPU may have been first */
		c->next_look_ns = now_ns + HURRIED_LOOK;
	if (moved)
		mark_other_taken(llc);
	return moved;
}

static __always_inline void others_init(void)
{
	first_jiffies = bpf_jiffies64();
	first_ns = clock_ns();
	others_now = pack(first_ns, 0);	/* not 0: that is what `peek` says of an empty queue */
}

/*
 * Let `prev`, one of the others, go on with a new slice, unless somebody goes before it or its
 * cgroup used up its quota. Charges what it ran so far.
 */
static __always_inline bool keep_other(struct task_struct *prev, u32 llc, s32 cpu, u64 now_ns)
{
	struct cpu *c = &cpus[cpu & (MAX_CPUS - 1)];
	u64 ran_ns = prev->se.sum_exec_runtime - c->start_ns;
	u64 vtime = others_vtime(prev, ran_ns), head = first_other(llc, cpu);

	if (nr_llcs > 1 && c->from)
		return false;
	if (head) {
		if (before(head, vtime))
			return false;
	} else if (nr_llcs > 1 && c->contended) {
		/* It is alone in its set only. */
	} else if (operators_first || !queues[llc].waiting) {
		vtime = others_start(prev, true);	/* nobody else wants this time: it is free */
	}
	leave_operator(c->slot);	/* one whose hints are lost counts as one of the others */
	set_vtime(prev, vtime);
	c->start_ns += ran_ns;
	c->since_ns = c->turn_ns = now_ns;
	c->vtime = vtime;
	c->credit_ns -= ran_ns;
	if (c->credit_ns < -(s64)(debt_ms * MS))
		c->credit_ns = -(s64)(debt_ms * MS);
	add(other_ns, ran_ns);
	if (throttled(prev, ran_ns, now_ns))
		return false;
	count(other_keeps);
	set_slice(prev, others_slice_ns());
	return true;
}

static __always_inline bool kick_idle(struct task_struct *p)
{
	s32 cpu;

	if (nr_cpus < 2)
		return false;
	cpu = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
	if (cpu < 0)
		return false;
	count(kicks);
	scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	return true;
}

/* Wake an idle CPU for the first thread of a queue that has one. */
subprogram int rouse_for(u64 dsq)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	bool woken = false;
	u32 i;

	bpf_iter_scx_dsq_new(&it, dsq, 0);
	for (i = unknown_zero; i < ROUSE_DEPTH && !woken && (p = bpf_iter_scx_dsq_next(&it)); i++)
		woken = kick_idle(p);
	bpf_iter_scx_dsq_destroy(&it);
	return woken;
}

/*
 * Back into the queue with those whose cgroup has quota again, or who waited beyond the bound. This
 * is an interrupt: with thousands of them it looks at some, puts those who stay at the end, and goes
 * on soon.
 */
enum { UNPARK_NONE, UNPARK_LEFT, UNPARK_CUT };

subprogram int unpark_some(u64 now_ns, int everybody)
{
	u64 bound = bound_jiffies(now_ns), oldest = bpf_jiffies64() - bound;
	u64 until_ns = bpf_ktime_get_ns() + UNPARK_FOR, group, last = 0;
	bool left = false, cut = false, many = many_parked, held = false;
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	u32 llc;

	bpf_rcu_read_lock();
	bpf_iter_scx_dsq_new(&it, PARKED_DSQ, 0);
	while ((p = bpf_iter_scx_dsq_next(&it))) {
		group = group_of_thread(p);
		if (group != last)
			held = charge_limits(group, 0, now_ns);
		last = group;
		if (!everybody && held && (!bound || (s64)(p->scx.runnable_at - oldest) >= 0)) {
			left = true;
			if (many)
				dsq_move(&it, p, PARKED_DSQ);
		} else {
			llc = llc_of(scx_bpf_task_cpu(p));
			mark_other(llc, p, p->scx.dsq_vtime);
			if (dsq_move_vtime(&it, p, others_dsq(llc)) && !kick_idle(p) && nr_cpus < 2 &&
			    cpus[0].tier == TIER_NONE)
				scx_bpf_kick_cpu(0, SCX_KICK_IDLE);	/* nothing else would wake it */
		}
		if ((s64)(bpf_ktime_get_ns() - until_ns) >= 0) {
			cut = true;
			break;
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	bpf_rcu_read_unlock();
	many_parked = cut;
	return cut ? UNPARK_CUT : left ? UNPARK_LEFT : UNPARK_NONE;
}

static int unpark(void *map, int *key, struct bpf_timer *timer)
{
	u64 now_ns = clock_ns();
	int left = unpark_some(now_ns, false);
	u32 i;

	__sync_lock_test_and_set(&unparks, 0);
	if (left == UNPARK_NONE && (s64)(now_ns - last_parked_ns - PARKS_GO_ON) >= 0 &&
	    scx_bpf_dsq_nr_queued(PARKED_DSQ) <= 0)
		return 0;
	unparks = 1;
	if (control.fault != FAULT_TIMERS &&
	    !bpf_timer_start(timer, left == UNPARK_CUT ? UNPARK_SOON : UNPARK_EVERY, 0))
		return 0;
	unparks = 0;
	count(no_timers);
	/* Nobody would come again but busy CPUs (`do_chores`). */
	for (i = 0; i < UNPARK_PIECES && unpark_some(now_ns, true) == UNPARK_CUT; i++)
		;
	return 0;
}

/* Does a thread wait for which a CPU is idle? */
subprogram int rouse(u32 llc)
{
	s32 others = scx_bpf_dsq_nr_queued(others_dsq(llc));
	u64 waiting;
	u32 i;

	llc &= MAX_LLCS - 1;
	sets[llc].others_head = 0;
	if (others > 0) {
		if (sets[llc].others_queued < others)
			sets[llc].others_queued = others;
		sets[llc].others_waiting = 1;
		if (rouse_for(others_dsq(llc)))
			return 1;
	}
	waiting = queues[llc].waiting;
	for_each_queue(i, waiting) {
		if (rouse_for(dsq_of(llc, i)))
			return 1;
	}
	return 0;
}

#endif
