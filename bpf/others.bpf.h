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
 * The lag of a thread is bounded when it wakes up only: at slice end that would take from those
 * who were kept waiting.
 *
 * ops.dispatch runs before ops.stopping, so what `prev` has run so far is not in the bucket yet
 * when a decision is made: it is charged there by hand.
 */
#ifndef SCHED_CTL_OTHERS_BPF_H
#define SCHED_CTL_OTHERS_BPF_H

#define QUANTUM (4 * MS)		/* credit that lets others go first */
#define MOST_CREDIT (20 * MS)
#define SLEEPER_CREDIT (10 * MS)	/* how far a woken thread may lag behind the others */

u32 others_waiting[MAX_LLCS];		/* 0: its queue was seen empty */

static __always_inline u64 others_dsq(u32 llc)
{
	return dsq_of(llc, MAX_QUEUES);
}

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

	/* Rounded up, or short runs would be free. */
	return pack(ran_ns * 100 / weight + 255, 0);
}

/* Of `prev`, which has run for so long since its vtime was written. */
static __always_inline u64 others_vtime(struct task_struct *prev, u64 ran_ns)
{
	u64 vtime = prev->scx.dsq_vtime;

	return (packed_slot(vtime) ? others_now : vtime) + others_charge(prev, ran_ns);
}

static __always_inline void queue_other(struct task_struct *p, u64 enq_flags)
{
	u64 vtime = p->scx.dsq_vtime;
	u32 llc = llc_of(scx_bpf_task_cpu(p));

	if (packed_slot(vtime))
		vtime = others_now;	/* was an operator until now */
	else if ((enq_flags & SCX_ENQ_WAKEUP) && before(vtime, others_now - pack(SLEEPER_CREDIT, 0)))
		vtime = others_now - pack(SLEEPER_CREDIT, 0);
	others_waiting[llc] = 1;
	dsq_insert_vtime(p, others_dsq(llc), others_slice_ns(), vtime, enq_flags);
}

/* Put the first of the others on this CPU. */
static __always_inline bool run_other(u32 llc)
{
	if (dsq_move_to_local(others_dsq(llc)))
		return true;
	others_waiting[llc] = 0;
	return false;
}

static __always_inline bool other_precedes(u32 llc, u64 vtime, s32 cpu)
{
	u64 head = peek(others_dsq(llc), cpu) & ~PASSED;

	return head && before(head, vtime);
}

#endif
