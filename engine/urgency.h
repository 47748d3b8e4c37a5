/* Which of two operators the pool takes: as every enforcer of urgency forms, by rank, then by
 *
 *     u = static + per_second * head age + per_tuple * queue size,
 *
 * among equals the one whose oldest tuple came first, and if that is the same (tuples of one age, as
 * those that came just now) the one that gains most by waiting. tests/orders compares them all.
 */
#ifndef URGENCY_H
#define URGENCY_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

struct form {
	double rank, fixed, per_second, per_tuple;
};

struct urgency {
	double rank, value, per_second;
};

static inline double or_zero(double x) { return isfinite(x) ? x : 0; }

/* due: arrival of the oldest tuple; 0 = none. It and the queue are not looked at without weight. */
static inline struct urgency urgency_at(const struct form *form, uint64_t queue, uint64_t due,
					uint64_t now)
{
	struct urgency u = {form->rank, form->fixed, form->per_second};

	if (form->per_tuple != 0)
		u.value += form->per_tuple * (double)queue;
	if (form->per_second != 0)
		u.value += form->per_second * (due && due < now ? (double)(now - due) * 1e-9 : 0);
	return u;
}

/* Above 0: one before the other; 0: as urgent. */
static inline int compare_urgency(const struct urgency *one, const struct urgency *other)
{
	if (one->rank != other->rank)
		return one->rank > other->rank ? 1 : -1;
	return (one->value > other->value) - (one->value < other->value);
}

static inline bool is_older(uint64_t due, uint64_t other) { return due && (!other || due < other); }

/* Of two that are as urgent. */
static inline bool wins_tie(const struct urgency *one, uint64_t due, const struct urgency *other,
			    uint64_t other_due)
{
	return due == other_due ? one->per_second > other->per_second : is_older(due, other_due);
}

#endif
