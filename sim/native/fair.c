// SPDX-License-Identifier: GPL-2.0-only
/*
 * EEVDF as in kernel/sched/fair.c of Linux 6.18, whose names are in brackets: among the threads
 * that have had no more than their share (virtual time at most the weighted average), the one with
 * the earliest virtual deadline.
 *
 * A thread that is put on a CPU is protected to the end of its first slice (RUN_TO_PARITY), while it
 * is eligible; once that is over, each look at it (tick, wake-up) lets the scheduler decide again.
 * Lag is kept over sleep (PLACE_LAG). A thread that sleeps with less than no lag stays in the list
 * until it would be picked (DELAY_DEQUEUE), so that sleeping does not forgive what it had too much;
 * if it is woken before, it goes on where it was.
 *
 * All slices are of one length, as they are unless somebody asks for another.
 */
#include <math.h>
#include <stddef.h>

#include "sim.h"

static bool in_list(const struct operator *o) { return o->ready_at >= 0; }

static void add(const struct operator *o, double base, double *weights, double *sum)
{
	*weights += o->weight;
	*sum += o->weight * (o->vruntime - base);
}

// [avg_vruntime] Of those in the list and those that run; `all`: their weights.
static double average(struct sim *s, double *all)
{
	double weights = 0, sum = 0, base = s->fair_time;
	for (int64_t i = 0; i < s->ready_n; i++)
		add(&s->ops[s->ready[i]], base, &weights, &sum);
	for (int64_t k = 0; k < s->c.cpus; k++)
		if (s->cpus[k].op >= 0 && !in_list(&s->ops[s->cpus[k].op]))
			add(&s->ops[s->cpus[k].op], base, &weights, &sum);
	if (weights > 0)
		s->fair_time = base + sum / weights;
	if (all)
		*all = weights;
	return s->fair_time;
}

void fair_insert(struct sim *s, int64_t op)
{
	s->ops[op].ready_at = s->ready_n;
	s->ready[s->ready_n++] = op;
}

void fair_remove(struct sim *s, int64_t op)
{
	int64_t last = s->ready[--s->ready_n], at = s->ops[op].ready_at;
	s->ready[at] = last;
	s->ops[last].ready_at = at;
	s->ops[op].ready_at = -1;
}

static void new_deadline(const struct sim *s, struct operator *o)
{
	o->deadline = o->vruntime + s->c.slice_s[o - s->ops] * FAIR_UNIT / o->weight;
}

// [place_entity] Joining moves the average by a part of the lag; make up for it.
static void place(struct sim *s, struct operator *o)
{
	double weights, now = average(s, &weights);
	double lag = weights > 0 ? o->lag * (weights + o->weight) / weights : 0;
	o->vruntime = now - lag;
	new_deadline(s, o);
}

// [update_entity_lag]
static void keep_lag(const struct sim *s, struct operator *o, double now)
{
	double limit = fmax(2 * s->c.slice_s[o - s->ops], s->c.tick_s) * FAIR_UNIT / o->weight;
	o->lag = fmax(-limit, fmin(limit, now - o->vruntime));
}

// [dequeue_entity] It has just been taken off its CPU.
void fair_sleep(struct sim *s, int64_t op)
{
	struct operator *o = &s->ops[op];
	fair_insert(s, op); // it counts in the average
	double now = average(s, NULL);
	if (o->vruntime > now) {
		o->delayed = true;
		return;
	}
	keep_lag(s, o, now);
	fair_remove(s, op);
}

// [enqueue_entity, requeue_delayed_entity]
void fair_wake(struct sim *s, int64_t op)
{
	struct operator *o = &s->ops[op];
	if (!in_list(o)) {
		place(s, o);
		return;
	}
	keep_lag(s, o, average(s, NULL));
	o->delayed = false;
	if (o->lag <= 0)
		return;
	o->lag = 0;
	fair_remove(s, op);
	place(s, o);
	fair_insert(s, op);
}

void fair_begin(struct sim *s, int64_t op)
{
	s->ops[op].protected_until = s->ops[op].deadline;
}

// [update_deadline]
void fair_update(struct sim *s, int64_t op)
{
	struct operator *o = &s->ops[op];
	if (o->vruntime >= o->deadline - 1e-12)
		new_deadline(s, o);
}

// [protect_slice]
bool fair_protected(const struct sim *s, int64_t op)
{
	return s->ops[op].vruntime < s->ops[op].protected_until - 1e-12;
}

static int64_t pick(struct sim *s, int64_t running, bool protect)
{
	double now = average(s, NULL) + 1e-12;
	int64_t best = -1, least = -1;
	if (running >= 0 && s->ops[running].vruntime <= now) {
		if (protect && fair_protected(s, running))
			return running;
		best = running;
	}
	for (int64_t i = 0; i < s->ready_n; i++) {
		int64_t op = s->ready[i];
		const struct operator *o = &s->ops[op];
		if (o->vruntime <= now && (best < 0 || o->deadline < s->ops[best].deadline))
			best = op;
		if (least < 0 || o->vruntime < s->ops[least].vruntime)
			least = op;
	}
	return best >= 0 ? best : least >= 0 ? least : running;
}

// [pick_next_entity]
int64_t fair_pick(struct sim *s, int64_t running, bool protect)
{
	for (;;) {
		int64_t op = pick(s, running, protect);
		if (op < 0 || !s->ops[op].delayed)
			return op;
		s->ops[op].delayed = false;
		s->ops[op].lag = 0; // [DELAY_ZERO]
		fair_remove(s, op);
	}
}
