// SPDX-License-Identifier: GPL-2.0-only
/*
 * A user-level scheduler. Each free worker takes the most urgent operator that waits, at most one
 * worker an operator, and keeps it for one tuple, for at most so many, for half or for all of its
 * queue. At operator level it then decides again; at query level the tuple first goes through all
 * operators downstream, depth first, except over edges that are not inline.
 *
 * What a decision takes inside the lock of the queue that all workers share, queue_s, one worker
 * takes after the other, in the order of their decisions; who waits for the lock spins.
 *
 * A tuple that blocks its operator holds the worker. Of bounded queues: an operator is not taken
 * while a queue is full that its tuples may end in, and may exceed the bound by the outputs of one
 * tuple (for each worker, at query level).
 */
#include <math.h>
#include <stddef.h>

#include "sim.h"

// Is a queue full that the next tuple of `op` may end in? At query level: also further down.
static bool full(const struct sim *s, int64_t op)
{
	if (!s->c.capacity)
		return false;
	for (const struct edge *e = s->edge + s->ops[op].first, *end = e + s->ops[op].edges; e < end; e++) {
		int64_t to = e->target;
		if ((int64_t)length(&s->ops[to]) >= s->c.capacity)
			return true;
		if (s->c.mode == SIM_QUERY && e->in_line && full(s, to))
			return true;
	}
	return false;
}

static void offer(struct sim *s, int64_t op)
{
	struct operator *o = &s->ops[op];
	if (!o->busy && length(o) && !full(s, op))
		order_insert(s->order, op, front(s, op).arrival, (double)length(o));
}

// After the queue of `op` grew by one.
static void arrived(struct sim *s, int64_t op, bool was_empty)
{
	if (was_empty)
		offer(s, op);
	else if (order_has(s->order, op) && order_counts(s->order, op))
		order_insert(s->order, op, front(s, op).arrival, (double)length(&s->ops[op]));
	if (s->c.capacity && (int64_t)length(&s->ops[op]) == s->c.capacity)
		for (int64_t u = 0; u < s->c.operators; u++) // rare, so no list of producers
			if (order_has(s->order, u) && full(s, u))
				order_remove(s->order, u);
}

static void deliver(struct sim *s, int64_t edge, struct tuple t)
{
	int64_t op = s->edge[edge].target;
	t.port = s->edge[edge].port;
	push(s, op, t);
	arrived(s, op, length(&s->ops[op]) == 1);
}

static void later(struct worker *w, int64_t edge, struct tuple t)
{
	w->pending = grow(w->pending, &w->pending_space, w->pending_n + 1, sizeof *w->pending);
	w->pending[w->pending_n++] = (struct pending){ t, edge };
}

// Take a tuple through `op` and, over inline edges, all operators after it. Returns when it ends.
static double through(struct sim *s, struct worker *w, int64_t op, struct tuple t, double at)
{
	double cost = draw_cost(s, op);
	result(s, op)[SIM_CPU] += cost + s->c.hop_s;
	at += cost + s->c.hop_s + draw_block(s, op);
	bool leaf = op == w->op;
	if (leaf)
		result(s, op)[SIM_DONE]++; // as if it were popped, for process(); see below
	else
		result(s, op)[SIM_IN]++, result(s, op)[SIM_DONE]++, s->c.totals[SIM_EVENTS]++;
	int64_t base = process(s, op, t, cost);
	if (leaf)
		result(s, op)[SIM_DONE]--;
	int64_t end = s->out_n, count = s->ops[op].edges;
	const struct edge *first = s->edge + s->ops[op].first;
	for (int64_t i = base; i < end; i++) {
		if (!count) {
			leave(s, op, s->out[i], at);
			continue;
		}
		if (count == 1 && first->share >= 1 && first->in_line) {
			struct tuple u = s->out[i];
			u.port = first->port;
			result(s, op)[SIM_SENT]++;
			at = through(s, w, first->target, u, at);
			continue;
		}
		int64_t edges[count]; // on the stack: this function calls itself
		int64_t n = route(s, op, edges);
		for (int64_t k = 0; k < n; k++) {
			struct tuple u = s->out[i];
			const struct edge *e = &s->edge[edges[k]];
			u.port = e->port;
			if (e->in_line)
				at = through(s, w, e->target, u, at);
			else
				later(w, edges[k], u);
		}
	}
	s->out_n = base;
	return at;
}

static void begin(struct sim *s, struct worker *w, double at)
{
	double start = at;
	if (s->c.mode == SIM_QUERY) {
		w->end = through(s, w, w->op, front(s, w->op), at);
	} else {
		w->drawn = draw_cost(s, w->op);
		result(s, w->op)[SIM_CPU] += w->drawn + s->c.hop_s;
		w->end = at + w->drawn + s->c.hop_s + draw_block(s, w->op);
	}
	s->c.totals[SIM_BUSY] += w->end - start;
}

static void release_producers(struct sim *s, int64_t op)
{
	if (s->c.capacity && (int64_t)length(&s->ops[op]) == s->c.capacity - 1)
		for (int64_t u = 0; u < s->c.operators; u++)
			if (!order_has(s->order, u))
				offer(s, u);
}

static void finish(struct sim *s, struct worker *w)
{
	int64_t op = w->op;
	struct tuple t = pop(s, op);
	if (s->c.mode == SIM_QUERY) {
		for (int64_t i = 0; i < w->pending_n; i++)
			deliver(s, w->pending[i].edge, w->pending[i].tuple);
		w->pending_n = 0;
	} else {
		int64_t base = process(s, op, t, w->drawn);
		bool egress = !s->ops[op].edges;
		for (int64_t i = base; i < s->out_n; i++) {
			if (egress) {
				leave(s, op, s->out[i], s->now);
				continue;
			}
			int64_t n = route(s, op, s->taken);
			for (int64_t k = 0; k < n; k++)
				deliver(s, s->taken[k], s->out[i]);
		}
		s->out_n = base;
	}
	release_producers(s, op);
	if (--w->left > 0 && length(&s->ops[op]) && !full(s, op)) {
		begin(s, w, s->now);
		return;
	}
	s->ops[op].busy = false;
	offer(s, op);
	w->op = -1;
	// Clustered processing: the same tuple in the other queries of the cluster, without deciding.
	int64_t peer = s->c.train ? order_peer(s->order, op, t.arrival) : -1;
	if (peer >= 0) {
		order_remove(s->order, peer);
		s->ops[peer].busy = true;
		w->op = peer;
		w->left = 1;
		begin(s, w, s->now);
	}
}

// When a worker that comes at `at` has had the lock of the shared queue.
static double locked(struct sim *s, double at)
{
	if (s->c.queue_s <= 0)
		return at;
	s->unlocked_at = fmax(at, s->unlocked_at) + s->c.queue_s;
	return s->unlocked_at;
}

static bool decide(struct sim *s, struct worker *w)
{
	int64_t op = order_next(s->order, s->now);
	if (op < 0)
		return false;
	int64_t n = order_candidates(s->order, (enum sim_candidates)s->c.candidates);
	double cost = s->c.decision_s + s->c.candidate_s * (double)n;
	int64_t waiting = (int64_t)length(&s->ops[op]);
	order_remove(s->order, op);
	s->ops[op].busy = true;
	w->op = op;
	w->left = s->c.batch == SIM_ALL	 ? waiting :
		  s->c.batch == SIM_HALF ? (waiting + 1) / 2 :
					   s->c.batch;
	s->c.totals[SIM_DECISIONS]++;
	double from = fmax(s->now, w->free_at), at = locked(s, from);
	s->c.totals[SIM_BUSY] += cost + (at - from);
	begin(s, w, at + cost);
	return true;
}

void user_start(struct sim *s)
{
	for (int64_t k = 0; k < s->c.cpus; k++)
		s->workers[k].op = -1;
}

// A source's thread takes the CPU from a worker, or wakes one up.
static void interrupt(struct sim *s, double tuples)
{
	bool begins = s->now >= s->source_until;
	double cost = (s->c.source_s > 0 ? tuples * s->c.hop_s : 0) + (begins ? s->c.source_s : 0);
	s->source_until = fmax(s->source_until, s->now) + cost;
	s->c.totals[SIM_BUSY] += cost;
	for (int64_t k = 0; k < s->c.cpus; k++)
		if (s->workers[k].op < 0) {
			if (begins)
				s->workers[k].free_at = s->source_until + s->c.wake_s + s->c.switch_s;
			else
				s->workers[k].free_at += cost;
			return;
		}
	s->workers[0].end += cost;
}

bool user_run(struct sim *s, double until)
{
	for (;;) {
		struct worker *first = NULL;
		for (int64_t k = 0; k < s->c.cpus; k++) {
			struct worker *w = &s->workers[k];
			if (w->op < 0 && !decide(s, w))
				continue;
			if (!first || w->end < first->end)
				first = w;
		}
		double arrival = next_arrival(s), end = first ? first->end : INFINITY;
		if (fmin(arrival, end) == INFINITY)
			return false;
		if (fmin(arrival, end) > until)
			return true;
		if (arrival <= end) {
			s->now = arrival;
			int64_t stream = s->c.order[s->arrived++];
			interrupt(s, (double)(s->c.feed_start[stream + 1] - s->c.feed_start[stream]));
			for (int64_t f = s->c.feed_start[stream]; f < s->c.feed_start[stream + 1]; f++) {
				int64_t op = s->c.feed[f];
				feed(s, op);
				arrived(s, op, length(&s->ops[op]) == 1);
			}
		} else {
			s->now = end;
			finish(s, first);
		}
	}
}
