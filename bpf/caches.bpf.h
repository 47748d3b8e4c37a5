/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Order and fairness over several sets of queues.
 *
 * Each last-level cache has queues of its own; a cache of more than SET_CPUS CPUs has several sets.
 * So the lock of a queue, and the lines that tell of it, belong to a few CPUs that are near each
 * other. What follows is how the sets come to one order without a place that all of them write to.
 *
 * OPERATORS (`pull`). Now and then a CPU compares what it is about to run with the first of other
 * sets, in turn: one set each FAR_EVERY, so FAR_SETS of them at the end of a long slice. It reads
 * the head keys that their own CPUs keep; the lock of a queue is taken only where a head is not
 * known. What is there is pulled if it is more urgent although it counts as younger by FAR_MARGIN,
 * and has waited for FAR_WAIT: who has not gets a CPU of its own cache soon, whose lines are warm.
 * So no operator waits while a less urgent one that it could replace runs elsewhere, for longer than
 *
 *	FAR_WAIT + a slice * ((sets - 1) / FAR_SETS, rounded up)
 *
 * which is 4.5 ms with slices of 4 ms (a tick at 250 Hz) and up to 17 sets, 8.5 ms up to 33 (512
 * CPUs), if only one CPU in all runs something less urgent. Where a look walks through a queue (an
 * exact one, or one whose first threads may not run here) the next one is FAR_DEAR later. Between
 * groups with shares the one that lags behind goes first, if it is by FAR_LAG.
 *
 * OTHERS (`find_laggard`). They share one virtual time, whatever the set. Every CHORES_NS a CPU
 * looks at the first of FAR_SETS other sets, and if one lags by FAR_LAG behind what is first here
 * the next turn of the others on this CPU is its. Who is alone in its set pays for its time as soon
 * as somebody elsewhere could use it. Of a thread's lag MOST_LAG comes along, or one that was bound
 * to a busy CPU for an hour would have this one to itself for long.
 *
 * A CPU that would idle looks at all sets (`steal`); where operators go before all others, one that
 * has others only looks at FAR_SETS of them at each decision, and takes who has not waited as well.
 */
#ifndef SCHED_CTL_CACHES_BPF_H
#define SCHED_CTL_CACHES_BPF_H

#include "kernel.bpf.h"
#include "sched_ctl.h"
#include "state.bpf.h"
#include "queues.bpf.h"
#include "order.bpf.h"
#include "others.bpf.h"
#include "yield.bpf.h"

#define FAR_EVERY (250 * US)
#define FAR_DEAR (5 * MS)
#define FAR_WAIT (500 * US)
#define FAR_MARGIN (1 * MS)
#define FAR_LAG (6 * MS)
#define MOST_LAG (100 * MS)

enum { FAR_SETS = 16 };			/* that are looked at in one decision */

/* Operators go first, and no other would have to give way to one here. */
static __always_inline bool wants_any(u32 llc, u32 slot)
{
	return operators_first && !slot && !queues[llc].waiting;
}

/* May this CPU look at the operators of other sets now? */
static __always_inline bool may_look(struct cpu *c, u32 llc, u32 slot, u64 now_ns)
{
	return nr_llcs > 1 && ((s64)(now_ns - c->next_far_ns) >= 0 || wants_any(llc, slot));
}

/* The set whose turn it is to be looked at from this one. */
static __always_inline u32 next_set(struct cpu *c, u32 llc)
{
	u32 other;

	c->far = c->far + 1 < nr_llcs ? c->far + 1 : 1;
	other = llc + c->far;
	return (other < nr_llcs ? other : other - nr_llcs) & (MAX_LLCS - 1);
}

/* Like `better`, but shares of groups are not kept to the nanosecond over sets. */
static __always_inline bool worth_moving(struct candidate *there, struct candidate *than)
{
	s64 lead_ns = there->vtime_ns - than->vtime_ns;

	if ((lead_ns > FAR_LAG || lead_ns < -FAR_LAG) && of_two_groups(there, than))
		return lead_ns < 0;
	return there->urgency > than->urgency;
}

/*
 * Put the first operator of another set here, if that is worth it. The one in `slot` would go on
 * here (cpu.mine), if there is one.
 */
subprogram int pull(u32 llc, s32 cpu, u64 now_ns, u32 slot)
{
	struct cpu *c = &cpus[cpu & (MAX_CPUS - 1)];
	struct candidate *there = &c->there;
	u64 waiting, key, looks;
	u32 i, other;

	llc &= MAX_LLCS - 1;
	looks = wants_any(llc, slot) ? FAR_SETS : 1 + (now_ns - c->next_far_ns) / FAR_EVERY;
	c->next_far_ns = now_ns + FAR_EVERY;
	for_each_number(i, FAR_SETS) {
		if (i >= looks || i + 1 >= nr_llcs)
			break;
		other = next_set(c, llc);
		waiting = queues[other].waiting;
		if (!waiting)
			continue;
		count(looks);
		if (pick(other, cpu, now_ns - FAR_MARGIN, waiting, there) < 0)
			continue;
		if (there->exact || (sets[other].stale & waiting)) {
			c->next_far_ns = now_ns + FAR_DEAR;
			looks = 0;
		}
		if (slot && !worth_moving(there, &c->mine))
			continue;
		key = there->exact ?: queues[other].head_key[there->queue & (MAX_QUEUES - 1)];
		if (!wants_any(llc, slot) &&
		    (s64)(now_ns - threads[packed_slot(key)].queued_ns - FAR_WAIT) < 0)
			continue;
		if (slot && batch_goes_on(slot, key, now_ns - c->turn_ns))
			continue;
		waiting = queues[llc].waiting;
		if (waiting && pick(llc, cpu, now_ns, waiting, &c->here) >= 0 &&
		    !worth_moving(there, &c->here))
			continue;
		record(TRACE_PICK, 0, now_ns, there->urgency);
		if (!take(other, cpu, there, true))
			continue;
		groups_reach(c, there->vtime_ns);
		count(pulls);
		c->next_far_ns = now_ns;	/* there may be more of them */
		return 1;
	}
	return 0;
}

/* Does one of the others wait in another set that lags behind whose turn would be next here? */
subprogram int find_laggard(struct cpu *c, u32 llc, s32 cpu)
{
	u64 key, mine, first = 0;
	u32 i, other, from = 0;

	if (!c)
		return 0;
	for_each_number(i, FAR_SETS) {
		if (i + 1 >= nr_llcs)
			break;
		other = next_set(c, llc);
		if (!sets[other].others_waiting)
			continue;
		key = first_other(other, cpu);
		if (key && (!first || before(key, first))) {
			first = key;
			from = other + 1;
		}
	}
	c->contended = from != 0;
	c->from = 0;
	if (!from)
		return 0;
	mine = c->tier == TIER_OTHER ? c->vtime : 0;
	key = first_other(llc, cpu);
	if (key && (!mine || before(key, mine)))
		mine = key;
	if (!mine && !operators_first)
		mine = operators_vtime;
	if (!mine || before(first + pack(FAR_LAG, 0), mine)) {
		c->from = from;
		c->from_vtime = first;
	}
	return 0;
}

/* What waits in any other set, for a CPU that has nothing. */
subprogram int steal(u32 llc, s32 cpu, u64 now_ns)
{
	struct candidate best;
	u32 i, other;

	for_each_number(i, nr_llcs - 1) {
		other = (llc + i + 1) % nr_llcs & (MAX_LLCS - 1);
		if (queues[other].waiting &&
		    pick(other, cpu, now_ns, queues[other].waiting, &best) >= 0 &&
		    take(other, cpu, &best, false)) {
			count(steals);
			return 1;
		}
	}
	for_each_number(i, nr_llcs - 1) {
		other = (llc + i + 1) % nr_llcs & (MAX_LLCS - 1);
		if ((sets[other].others_waiting && run_other(other)) || run_yielder(other)) {
			count(steals);
			return 1;
		}
	}
	return 0;
}

#endif
