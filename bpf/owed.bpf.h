/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who has the next turn because its query lags behind its fair share (floor.bpf.h).
 *
 * It is found in the table of threads, as for the bound of waiting (starve.bpf.h): each CPU looks
 * every CHORES_NS, and while somebody lags at each decision, unless the table is long: a look goes
 * through ROWS of its rows and shall not take more than about a hundredth of the time.
 */
#ifndef SCHED_CTL_OWED_BPF_H
#define SCHED_CTL_OWED_BPF_H

#include "kernel.bpf.h"
#include "sched_ctl.h"
#include "state.bpf.h"
#include "queues.bpf.h"
#include "floor.bpf.h"
#include "fair.bpf.h"
#include "starve.bpf.h"

#define FLOOR_LASTS (100 * MS)		/* looks go on for so long when nobody lags any more */
#define FLOOR_ROW_NS 1000		/* from one look to the next, for each of its rows */

struct laggard {
	s64 lag_ns;			/* the most so far */
	u64 since_ns;
	u32 found;			/* its slot; 0 = none yet */
	u32 hand;
	u32 only_cpu;
	u8 set;
};

static long look_for_lag(u64 i, struct laggard *search)
{
	u32 slot = search->hand + i;
	struct thread *t = &threads[slot & (MAX_SLOTS - 1)];
	s64 lag_ns;

	if (slot >= slots_used)
		return 1;
	if (!t->queued_ns || !t->query || t->set != search->set ||
	    (nr_cpus > 1 && t->only_cpu && t->only_cpu != search->only_cpu))
		return 0;
	lag_ns = lag_of(slot);
	if (lag_ns < search->lag_ns ||
	    (lag_ns == search->lag_ns && (s64)(t->hungry_ns - search->since_ns) >= 0))
		return 0;
	if (held_by_cap(slot, search->only_cpu - 1) ||
	    !movable(slot, search->set - 1, search->only_cpu - 1))
		return 0;
	search->lag_ns = lag_ns;
	search->since_ns = t->hungry_ns;
	search->found = slot;
	return 0;
}

/* Slot of the operator that waits in this set and whose query lags most, beyond the bound; 0: none. */
subprogram u32 find_lag(u32 llc, s32 cpu, u64 now_ns)
{
	struct cpu *c = &cpus[cpu & (MAX_CPUS - 1)];
	struct laggard search = {
		.lag_ns = floor_bound_ns() + 1,
		.since_ns = now_ns,
		.hand = c->floor_hand,
		.only_cpu = cpu + 1,
		.set = llc + 1,
	};
	u32 rows = slots_used < ROWS ? slots_used : ROWS;

	bpf_loop(ROWS, look_for_lag, &search, 0);
	c->next_floor_ns = now_ns + rows * FLOOR_ROW_NS;
	if (search.found) {
		c->floor_until_ns = now_ns + FLOOR_LASTS;
		return search.found;
	}
	c->floor_hand += ROWS;
	if (c->floor_hand >= slots_used)
		c->floor_hand = 0;
	return 0;
}

/* Has this CPU to look, before the order decides? */
static __always_inline bool floor_due(struct cpu *c, u64 now_ns)
{
	return (s64)(c->floor_until_ns - now_ns) > 0;
}

enum { FLOOR_NOBODY, FLOOR_MOVED, FLOOR_KEEP };

/*
 * The order would have `first` run, or go on. Does another go before it: one that waits, which is put
 * here then, or the one in `slot` (0: none), which runs here and could go on?
 */
subprogram int floor_instead(u32 llc, s32 cpu, u64 now_ns, u32 first, u32 slot)
{
	struct cpu *c = &cpus[cpu & (MAX_CPUS - 1)];
	u32 found;
	int queue;

	if (within_share(first))
		return FLOOR_NOBODY;
	if (slot && goes_first(slot, first)) {
		c->floor_until_ns = now_ns + FLOOR_LASTS;
		return slot == first ? FLOOR_NOBODY : FLOOR_KEEP;
	}
	if ((s64)(now_ns - c->next_floor_ns) < 0)
		return FLOOR_NOBODY;
	found = find_lag(llc & (MAX_LLCS - 1), cpu, now_ns);
	if (!found || floor_of(found)->clock != floor_of(first)->clock)
		return FLOOR_NOBODY;
	queue = move_slot(llc & (MAX_LLCS - 1), found, cpu);
	if (queue < 0)
		return FLOOR_NOBODY;
	mark_taken(llc & (MAX_LLCS - 1), queue & (MAX_QUEUES - 1));
	count(owed);
	record(TRACE_OWED, found, now_ns, 0);
	return FLOOR_MOVED;
}

#endif
