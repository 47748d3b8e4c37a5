/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a query has had of the CPU beside its fair share: arithmetic alone, which an ordinary compiler
 * takes as well (tests/orders/floor.c).
 *
 * Each query has a virtual time, which grows by its CPU time over its weight. A clock says how far they
 * have got on average, by weight, of those that want a CPU. How far a query is behind that is its lag:
 * what it would have had by now of a fair share, and has not. Lags add up to nothing, so where somebody
 * lags somebody has had more. What a query lags when it sleeps it lags when it wakes up, and what it has
 * had too much melts while others run; neither is more than `most_ns`.
 *
 * So that the sum behind the average is exact for ever it is kept in whole units, of time and weight.
 */
#ifndef SCHED_CTL_FLOOR_H
#define SCHED_CTL_FLOOR_H

#define FLOOR_UNIT 10			/* 1.024 us, as a power of two of ns */
#define FLOOR_WEIGHT (WEIGHT_ONE / 16)	/* of a thread of nice 0 */

struct floor_clock {
	s64 sum;			/* of weight * virtual time, in whole units of it */
	s64 weight;			/* of all queries that want a CPU */
	u64 stood_ns;			/* where it stood when the last of them slept */
	u64 ran_ns;			/* CPU time of all of them, ever */
};

struct floor_query {
	u64 vtime_ns;
	u64 lag_ns;			/* what it was when it slept last */
	u64 had_ns;			/* CPU time of late: halved each time that all ran for floor_lately() */
	u64 halved_ns;			/* ran_ns of the clock when it was halved last */
	u32 counted;			/* its weight in the clock; 0 = it does not count */
	s32 wanting;			/* threads of it that want a CPU */
	u32 clock;
};

static __always_inline u64 floor_now(const struct floor_clock *c)
{
	s64 weight = c->weight, sum = c->sum;

	return weight > 0 && sum > 0 ? (u64)sum / (u64)weight << FLOOR_UNIT : c->stood_ns;
}

static __always_inline s64 floor_lag(const struct floor_query *q, const struct floor_clock *c)
{
	return floor_now(c) - q->vtime_ns;
}

/* WEIGHT_ONE is a thread of nice 0. */
static __always_inline u32 floor_weight(u32 weight)
{
	u32 counted = weight / (WEIGHT_ONE / FLOOR_WEIGHT);

	return weight && !counted ? 1 : counted;
}

/* Its weight is another now; 0 while it wants no CPU. */
static __always_inline void floor_count(struct floor_query *q, struct floor_clock *c, u32 counted)
{
	s64 more = (s64)counted - (s64)__sync_lock_test_and_set(&q->counted, counted);

	if (!more)
		return;
	__sync_fetch_and_add(&c->sum, more * (s64)(q->vtime_ns >> FLOOR_UNIT));
	__sync_fetch_and_add(&c->weight, more);
}

/* A thread of it wants a CPU. */
static __always_inline void floor_enter(struct floor_query *q, struct floor_clock *c, u32 weight,
					s64 most_ns)
{
	u32 counted = floor_weight(weight);
	u64 now_ns, least_ns, others;

	if (__sync_fetch_and_add(&q->wanting, 1) > 0)
		return;
	now_ns = floor_now(c);
	others = c->weight;
	/* With it, the average is further back; it shall lag what it did behind that. */
	least_ns = now_ns - ((s64)others > 0 ? q->lag_ns * (others + counted) / others : q->lag_ns);
	if ((s64)(q->vtime_ns - least_ns) < 0)
		q->vtime_ns = least_ns;
	if ((s64)(q->vtime_ns - now_ns - most_ns) > 0)
		q->vtime_ns = now_ns + most_ns;
	floor_count(q, c, counted);
}

/* It does no more. */
static __always_inline void floor_leave(struct floor_query *q, struct floor_clock *c, s64 most_ns)
{
	u64 now_ns;
	s64 lag_ns;

	if (__sync_fetch_and_add(&q->wanting, -1) > 1)
		return;
	now_ns = floor_now(c);
	lag_ns = now_ns - q->vtime_ns;
	q->lag_ns = lag_ns < 0 ? 0 : lag_ns < most_ns ? lag_ns : most_ns;
	c->stood_ns = now_ns;
	floor_count(q, c, 0);
}

/* Its virtual time grows. */
static __always_inline void floor_add(struct floor_query *q, struct floor_clock *c, u64 ns)
{
	u64 was_ns = __sync_fetch_and_add(&q->vtime_ns, ns);

	__sync_fetch_and_add(&c->sum, (s64)q->counted * (s64)(((was_ns + ns) >> FLOOR_UNIT) -
							      (was_ns >> FLOOR_UNIT)));
}

static __always_inline u64 floor_lately(s64 most_ns)
{
	return 2 * most_ns;
}

/* What it has had of late. */
static __always_inline u64 floor_had(const struct floor_query *q, const struct floor_clock *c,
				     s64 most_ns)
{
	u64 halvings = (c->ran_ns - q->halved_ns) / floor_lately(most_ns);

	return halvings < 64 ? q->had_ns >> halvings : 0;
}

/* A thread of it ran. */
static __always_inline void floor_charge(struct floor_query *q, struct floor_clock *c, u64 ran_ns,
					 s64 most_ns)
{
	s64 lag_ns;

	if (!q->counted)
		return;
	__sync_fetch_and_add(&c->ran_ns, ran_ns);
	q->had_ns = floor_had(q, c, most_ns) + ran_ns;
	q->halved_ns = c->ran_ns - (c->ran_ns - q->halved_ns) % floor_lately(most_ns);
	floor_add(q, c, ran_ns * FLOOR_WEIGHT / q->counted);
	lag_ns = floor_lag(q, c);
	if (lag_ns > most_ns)
		floor_add(q, c, lag_ns - most_ns);
}

/*
 * Has it not had its fair share? By its lag; or of late, for the clock falls back when one that lags wakes
 * up, and then also a light one seems to have had too much. Light is who uses an eighth of its share
 * (what it had of late is one to two times its use): were it half, one that has caught up would stay last
 * (tests/unit/test_floor.py).
 */
static __always_inline bool floor_within(const struct floor_query *q, const struct floor_clock *c,
					 s64 most_ns)
{
	return floor_lag(q, c) >= 0 ||
	       4 * floor_had(q, c, most_ns) * c->weight < floor_lately(most_ns) * q->counted;
}

#endif
