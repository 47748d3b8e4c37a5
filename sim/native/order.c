// SPDX-License-Identifier: GPL-2.0-only
/*
 * The operators that wait, in the order of their urgency forms
 *
 *     u(t) = static + per_second * (t - origin) + per_tuple * queue size
 *
 * Two operators with the same per_second keep their order while time passes. So those with equal
 * rank and per_second form a group, a binary heap by `static + per_tuple * size - per_second *
 * origin`, and a decision compares only the tops of the groups of the highest rank: a static policy
 * has one group and costs log n, FCFS as well, clusters have one group each (AQSIOS, 6.2.1), and in
 * the worst case each operator is a group of its own, which is a scan of one array.
 *
 * With `rotate`, groups take turns instead (round robin), `turns` tuples each.
 */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define NONE (-1e300) // urgency of an empty group; finite, so that 0 * t keeps it

struct place { // of an operator: one cache line
	double fixed, per_tuple, key, origin;
	int64_t group;
	int64_t at; // place in the heap of its group, -1: not waiting
} __attribute__((aligned(64)));

struct order {
	int64_t n, groups, ranks;
	struct place *op;
	int64_t *heap, *start, *size;
	double *top, *slope; // by group: key of the best, per_second
	int64_t *rank_of, *rank_start;
	int64_t waiting;
	bool rotate, sized;
	int64_t turn, left;
	int64_t *turns;
};

struct order *order_new(int64_t n)
{
	struct order *o = calloc(1, sizeof *o);
	o->n = n;
	size_t k = (size_t)n + 1;
	o->op = table(n, sizeof *o->op);
	for (int64_t i = 0; i < n; i++)
		o->op[i].at = -1;
	o->heap = calloc(k, sizeof(int64_t));
	o->start = calloc(k + 1, sizeof(int64_t));
	o->size = calloc(k, sizeof(int64_t));
	o->top = calloc(k, sizeof(double));
	o->slope = calloc(k, sizeof(double));
	o->rank_of = calloc(k, sizeof(int64_t));
	o->rank_start = calloc(k + 1, sizeof(int64_t));
	o->turns = calloc(k, sizeof(int64_t));
	return o;
}

void order_free(struct order *o)
{
	void *parts[] = { o->op,  o->heap,    o->start,	     o->size, o->top,
			  o->slope, o->rank_of, o->rank_start, o->turns };
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
		free(parts[i]);
	free(o);
}

bool order_has(const struct order *o, int64_t op) { return o->op[op].at >= 0; }
bool order_counts(const struct order *o, int64_t op) { return o->sized && o->op[op].per_tuple != 0; }

static inline bool before(const struct order *o, int64_t a, int64_t b)
{
	if (o->op[a].key != o->op[b].key)
		return o->op[a].key > o->op[b].key;
	if (o->op[a].origin != o->op[b].origin) // among equals, the oldest
		return o->op[a].origin < o->op[b].origin;
	return a < b;
}

static void up(struct order *o, int64_t *h, int64_t i, int64_t op)
{
	for (; i > 0; i = (i - 1) / 2) {
		int64_t parent = h[(i - 1) / 2];
		if (!before(o, op, parent))
			break;
		h[i] = parent;
		o->op[parent].at = i;
	}
	h[i] = op;
	o->op[op].at = i;
}

static void down(struct order *o, int64_t *h, int64_t size, int64_t i, int64_t op)
{
	for (;;) {
		int64_t child = 2 * i + 1;
		if (child >= size)
			break;
		if (child + 1 < size && before(o, h[child + 1], h[child]))
			child++;
		if (!before(o, h[child], op))
			break;
		h[i] = h[child];
		o->op[h[i]].at = i;
		i = child;
	}
	h[i] = op;
	o->op[op].at = i;
}

static void retop(struct order *o, int64_t g)
{
	o->top[g] = o->size[g] ? o->op[o->heap[o->start[g]]].key : NONE;
}

void order_insert(struct order *o, int64_t op, double origin, double queue_size)
{
	int64_t g = o->op[op].group, *h = o->heap + o->start[g];
	o->op[op].key = o->op[op].fixed + o->op[op].per_tuple * queue_size - o->slope[g] * origin;
	o->op[op].origin = origin;
	if (o->op[op].at >= 0) { // its key changed
		int64_t i = o->op[op].at;
		if (i > 0 && before(o, op, h[(i - 1) / 2]))
			up(o, h, i, op);
		else
			down(o, h, o->size[g], i, op);
	} else {
		up(o, h, o->size[g]++, op);
		o->waiting++;
	}
	retop(o, g);
}

void order_remove(struct order *o, int64_t op)
{
	int64_t g = o->op[op].group, *h = o->heap + o->start[g], i = o->op[op].at;
	int64_t last = h[--o->size[g]];
	o->op[op].at = -1;
	o->waiting--;
	if (last != op) {
		if (i > 0 && before(o, last, h[(i - 1) / 2]))
			up(o, h, i, last);
		else
			down(o, h, o->size[g], i, last);
	}
	retop(o, g);
}

void order_set(struct order *o, const double *fixed, const double *per_tuple,
	       const int64_t *group_of, int64_t groups, const double *per_second,
	       const int64_t *rank_of_group, const int64_t *turns, bool rotate)
{
	for (int64_t i = 0; i < o->n; i++)
		o->op[i] = (struct place){ fixed[i], per_tuple[i], 0, 0, group_of[i], -1 };
	memcpy(o->slope, per_second, (size_t)groups * sizeof(double));
	memcpy(o->rank_of, rank_of_group, (size_t)groups * sizeof(int64_t));
	memcpy(o->turns, turns, (size_t)groups * sizeof(int64_t));
	o->groups = groups;
	o->rotate = rotate;
	o->waiting = 0;
	o->sized = false;
	memset(o->start, 0, (size_t)(groups + 1) * sizeof(int64_t));
	for (int64_t i = 0; i < o->n; i++) {
		o->start[group_of[i] + 1]++;
		o->sized |= per_tuple[i] != 0;
	}
	o->ranks = 0;
	for (int64_t g = 0; g < groups; g++) {
		o->start[g + 1] += o->start[g];
		o->size[g] = 0;
		o->top[g] = NONE;
		if (g == 0 || rank_of_group[g] != rank_of_group[g - 1])
			o->rank_start[o->ranks++] = g;
	}
	o->rank_start[o->ranks] = groups;
	if (o->turn >= groups)
		o->turn = 0;
}

// The group with the largest urgency in first..end; -1 if all are empty.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("avx2", "default")))
#endif
static double most(const double *top, const double *slope, int64_t n, double now)
{
	double best = NONE;
#pragma omp simd reduction(max : best)
	for (int64_t g = 0; g < n; g++) {
		double u = top[g] > NONE ? top[g] + slope[g] * now : NONE;
		best = u > best ? u : best;
	}
	return best;
}

static int64_t best_group(const struct order *o, int64_t first, int64_t end, double now)
{
	if (end - first == 1)
		return o->size[first] ? first : -1;
	double best = most(o->top + first, o->slope + first, end - first, now);
	if (best == NONE)
		return -1;
	for (int64_t g = first; g < end; g++)
		if (o->size[g] && o->top[g] + o->slope[g] * now >= best)
			return g;
	return -1; // not reached: the same arithmetic found `best`
}

static int64_t turn_group(struct order *o)
{
	if (o->left > 0 && o->size[o->turn])
		return o->turn;
	for (int64_t i = 1; i <= o->groups; i++) {
		int64_t g = o->turn + i < o->groups ? o->turn + i : o->turn + i - o->groups;
		if (o->size[g]) {
			o->turn = g;
			o->left = o->turns[g];
			return g;
		}
	}
	return -1;
}

int64_t order_best(struct order *o, double now)
{
	if (!o->waiting)
		return -1;
	if (o->rotate) {
		int64_t g = turn_group(o);
		return o->heap[o->start[g]];
	}
	for (int64_t r = 0; r < o->ranks; r++) {
		int64_t g = best_group(o, o->rank_start[r], o->rank_start[r + 1], now);
		if (g >= 0)
			return o->heap[o->start[g]];
	}
	return -1;
}

int64_t order_next(struct order *o, double now)
{
	int64_t op = order_best(o, now);
	if (op >= 0 && o->rotate)
		o->left--;
	return op;
}

// Another operator of the group that waits with a tuple of the same age, the next in its order.
int64_t order_peer(const struct order *o, int64_t op, double origin)
{
	int64_t g = o->op[op].group;
	if (!o->size[g])
		return -1;
	int64_t top = o->heap[o->start[g]];
	return o->op[top].origin == origin ? top : -1;
}

bool order_beats(const struct order *o, int64_t op, int64_t other, double origin, double size,
		 double now)
{
	int64_t g = o->op[op].group, k = o->op[other].group;
	if (o->rank_of[g] != o->rank_of[k])
		return o->rank_of[g] < o->rank_of[k];
	double u = o->op[other].fixed + o->op[other].per_tuple * size + o->slope[k] * (now - origin);
	return o->op[op].key + o->slope[g] * now > u;
}

bool order_ranks_above(const struct order *o, int64_t op, int64_t other)
{
	return o->rank_of[o->op[op].group] < o->rank_of[o->op[other].group];
}

static int64_t fagin(const struct order *o)
{
	// Go down the clusters by pseudo-priority and by age in step, until one is seen in both lists.
	int64_t n = 0, seen = 0, by_slope[256] = { 0 }, by_age[256];
	for (int64_t g = 0; g < o->groups && n < 256; g++)
		if (o->size[g])
			by_slope[n++] = g;
	memcpy(by_age, by_slope, sizeof by_age);
	for (int64_t i = 1; i < n; i++)
		for (int64_t j = i; j > 0; j--) {
			if (o->slope[by_slope[j]] > o->slope[by_slope[j - 1]]) {
				int64_t t = by_slope[j];
				by_slope[j] = by_slope[j - 1], by_slope[j - 1] = t;
			}
			if (o->op[o->heap[o->start[by_age[j]]]].origin <
			    o->op[o->heap[o->start[by_age[j - 1]]]].origin) {
				int64_t t = by_age[j];
				by_age[j] = by_age[j - 1], by_age[j - 1] = t;
			}
		}
	for (int64_t depth = 0; depth < n; depth++) {
		bool both = false;
		for (int64_t i = 0; i <= depth; i++)
			both |= by_age[i] == by_slope[depth] || by_slope[i] == by_age[depth];
		seen = depth + 1;
		if (both)
			break;
	}
	int64_t visited = seen; // distinct ones
	for (int64_t i = 0; i < seen; i++) {
		bool known = false;
		for (int64_t j = 0; j < seen; j++)
			known |= by_age[i] == by_slope[j];
		visited += !known;
	}
	return visited;
}

int64_t order_candidates(const struct order *o, enum sim_candidates what)
{
	int64_t n = 0;
	switch (what) {
	case SIM_COUNT_NONE:
		return 0;
	case SIM_COUNT_OPERATORS:
		return o->waiting;
	case SIM_COUNT_FAGIN:
		return fagin(o);
	case SIM_COUNT_GROUPS:
		for (int64_t g = 0; g < o->groups; g++)
			n += o->size[g] > 0;
	}
	return n;
}
