/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The floor: an order takes from no query the share of the CPU that it would have without one.
 *
 * Strict order starves whoever wants more than is left, also a query that would catch up with its
 * backlog at its fair share, and then need little. So what each query has had is held against its fair
 * share, by the weights that the controller gives: what its threads would weigh in the kernel's fair
 * class, less those that wait for its busiest one (ctl/backends/scx/weight.py). While nobody lags by
 * more than control.floor_us the order decides alone. Who does has the next turn, unless the first in
 * the order is within its own share (floor.h); and a query that had more does not interrupt it.
 *
 * Among its threads the one goes that has waited longest. Shares count inside a group only where
 * groups have shares. Queries whose weight is 0 have no floor, and take nothing for that of others.
 *
 * This file has the accounts; owed.bpf.h has who goes first by them.
 */
#ifndef SCHED_CTL_FLOOR_BPF_H
#define SCHED_CTL_FLOOR_BPF_H

#include "kernel.bpf.h"
#include "sched_ctl.h"
#include "state.bpf.h"
#include "order.bpf.h"
#include "cgroups.bpf.h"
#include "floor.h"

struct floor_query floors[MAX_QUERIES] LINES;
struct floor_clock clocks[2 * MAX_GROUPS] LINES;	/* by group, + 1; 0 = of no share */

static __always_inline s64 floor_bound_ns(void)
{
	return control.floor_us * US;
}

static __always_inline struct floor_query *floor_of(u32 slot)
{
	return &floors[threads[slot & (MAX_SLOTS - 1)].query & (MAX_QUERIES - 1)];
}

static __always_inline struct floor_clock *clock_of(struct floor_query *q)
{
	return &clocks[q->clock & (2 * MAX_GROUPS - 1)];
}

/* Which clock a thread's query goes by: a group has its own where groups have shares. */
static __always_inline u32 clock_for(u32 slot)
{
	u32 g;
	struct group *group = group_of(slots[slot & (MAX_SLOTS - 1)].queue, &g);

	return control.nr_groups && group->share ? g + 1 : 0;
}

/* The thread in this slot wants a CPU, or does no more. */
static __always_inline void floor_join(u32 slot)
{
	u32 query = slots[slot & (MAX_SLOTS - 1)].query & (MAX_QUERIES - 1);
	struct floor_query *q = &floors[query];

	if (!query || !weights[query])
		return;
	threads[slot & (MAX_SLOTS - 1)].query = query;
	if (q->wanting <= 0)
		q->clock = clock_for(slot);
	floor_enter(q, clock_of(q), weights[query], 2 * floor_bound_ns());
}

static __always_inline void floor_part(u32 slot)
{
	struct thread *t = &threads[slot & (MAX_SLOTS - 1)];
	struct floor_query *q = floor_of(slot);

	if (!t->query)
		return;
	t->query = 0;
	floor_leave(q, clock_of(q), 2 * floor_bound_ns());
}

/* It goes on wanting a CPU: as what the controller says of it by now. */
static __always_inline void floor_follow(u32 slot)
{
	struct thread *t = &threads[slot & (MAX_SLOTS - 1)];
	u32 query = slots[slot & (MAX_SLOTS - 1)].query & (MAX_QUERIES - 1), clock;
	struct floor_query *q;

	if (t->query != (weights[query] ? query : 0)) {
		floor_part(slot);
		floor_join(slot);
	}
	q = floor_of(slot);
	if (!t->query)
		return;
	clock = clock_for(slot);
	if (q->clock != clock) {
		floor_count(q, clock_of(q), 0);
		q->clock = clock;
		q->vtime_ns = floor_now(clock_of(q));
	}
	if (q->counted != floor_weight(weights[query]))
		floor_count(q, clock_of(q), floor_weight(weights[query]));
}

static __always_inline void floor_ran(u32 slot, u64 ran_ns)
{
	struct floor_query *q = floor_of(slot);

	if (threads[slot & (MAX_SLOTS - 1)].query)
		floor_charge(q, clock_of(q), ran_ns, 2 * floor_bound_ns());
	floor_follow(slot);
}

/* How far the query of the thread in this slot, which wants a CPU, is behind its share; 0: no floor. */
static __always_inline s64 lag_of(u32 slot)
{
	struct floor_query *q = floor_of(slot);

	return threads[slot & (MAX_SLOTS - 1)].query && q->counted ? floor_lag(q, clock_of(q)) : 0;
}

/* Has the query of the thread in this slot not had its fair share, or no floor? */
static __always_inline bool within_share(u32 slot)
{
	struct floor_query *q = floor_of(slot);

	return !threads[slot & (MAX_SLOTS - 1)].query || !q->counted ||
	       floor_within(q, clock_of(q), 2 * floor_bound_ns());
}

/*
 * Does the operator in `slot` go before this one, though that is the first in the order? Who lags more
 * than the bound does, unless the first has not had its fair share either: so a light query goes first by
 * its rank, and of those that want more than their share nobody gets less.
 */
static __always_inline bool goes_first(u32 slot, u32 first)
{
	return control.floor_us && lag_of(slot) > floor_bound_ns() && !within_share(first);
}

#endif
