// SPDX-License-Identifier: GPL-2.0-only
/* Tuples, queues, joins, results: what both kinds of scheduling share. And the calls from Python. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define EXPORT __attribute__((visibility("default")))

void *grow(void *memory, int64_t *space, int64_t need, uint64_t size)
{
	if (need <= *space)
		return memory;
	*space = need > 2 * *space ? need : 2 * *space;
	memory = realloc(memory, (uint64_t)*space * size);
	if (!memory)
		abort(); // a simulation that does not fit into memory has no other end
	return memory;
}

// splitmix64 (Steele et al. 2014)
double uniform(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

// --- queues --------------------------------------------------------------------------------------

// Account the size that the queue had until now. `before`: that size.
static void touch(struct sim *s, int64_t op, double before)
{
	struct operator *o = &s->ops[op];
	result(s, op)[SIM_QUEUE_AREA] += before * (s->now - o->changed);
	o->changed = s->now;
}

static void account_memory(struct sim *s, double change)
{
	double from = fmax(s->memory_changed, s->c.warm_s), to = fmin(s->now, s->c.end_s);
	if (to > from)
		s->c.totals[SIM_MEMORY_AREA] += s->memory * (to - from);
	s->memory_changed = s->now;
	s->memory += change;
	if (s->memory > s->c.totals[SIM_MEMORY_MAX])
		s->c.totals[SIM_MEMORY_MAX] = s->memory;
}

static void pushed(struct sim *s, int64_t op)
{
	struct operator *o = &s->ops[op];
	double *r = result(s, op), size = (double)length(o);
	touch(s, op, size - 1);
	if (size == 1)
		o->occupied = s->now;
	r[SIM_IN]++;
	if (size > r[SIM_QUEUE_MAX])
		r[SIM_QUEUE_MAX] = size;
}

void push(struct sim *s, int64_t op, struct tuple t)
{
	struct operator *o = &s->ops[op];
	struct queue *q = &o->queue;
	if (q->tail - q->head > q->mask) {
		uint64_t space = 4 * (q->mask + 1);
		struct tuple *ring = malloc(space * sizeof *ring);
		if (!ring)
			abort();
		for (uint64_t i = q->head; i != q->tail; i++)
			ring[i & (space - 1)] = q->ring[i & q->mask];
		if (q->ring != o->near)
			free(q->ring);
		q->ring = ring;
		q->mask = space - 1;
	}
	q->ring[q->tail++ & q->mask] = t;
	account_memory(s, 1);
	pushed(s, op);
}

void feed(struct sim *s, int64_t op)
{
	if (!s->ops[op].queue.times) {
		double came = s->c.due_s[s->arrived - 1];
		push(s, op, (struct tuple){ came, came, 0, 0 });
		return;
	}
	s->ops[op].queue.tail++;
	account_memory(s, 1);
	pushed(s, op);
}

struct tuple front(const struct sim *s, int64_t op)
{
	const struct queue *q = &s->ops[op].queue;
	if (q->times)
		return (struct tuple){ q->times[q->head], q->times[q->head], 0, 0 };
	return q->ring[q->head & q->mask];
}

struct tuple pop(struct sim *s, int64_t op)
{
	struct operator *o = &s->ops[op];
	struct tuple t = front(s, op);
	touch(s, op, (double)length(o));
	account_memory(s, -1);
	o->queue.head++;
	result(s, op)[SIM_DONE]++;
	s->c.totals[SIM_EVENTS]++;
	if (!length(o))
		result(s, op)[SIM_OCCUPIED] += s->now - o->occupied;
	return t;
}

double next_arrival(const struct sim *s)
{
	return s->arrived < s->c.arrivals ? s->c.due_s[s->arrived] : INFINITY;
}

// --- operators -----------------------------------------------------------------------------------

double draw_cost(struct sim *s, int64_t op)
{
	struct operator *o = &s->ops[op];
	return s->c.exponential ? -log1p(-uniform(&o->costs)) * o->cost : o->cost;
}

double draw_block(struct sim *s, int64_t op)
{
	struct operator *o = &s->ops[op];
	if (!o->blocks)
		return 0;
	double p = s->c.block_probability[op];
	if (uniform(&o->costs) >= p)
		return 0;
	return uniform(&o->costs) * s->c.block_max_s[op];
}

static void emit(struct sim *s, struct tuple t)
{
	s->out = grow(s->out, &s->out_space, s->out_n + 1, sizeof *s->out);
	s->out[s->out_n++] = t;
}

/* A symmetric hash join over a time window: the tuple enters the table of its side and is paired
 * with those of the other side that are within window_s of it, each with the probability
 * `selectivity`. Each input is in the order of arrival, so what is older than the window by then
 * is of no more use. */
static void join(struct sim *s, struct operator *o, struct tuple t)
{
	struct window *own = &o->window[t.port & 1], *other = &o->window[!(t.port & 1)];
	while (other->n && other->tuples[other->first].arrival < t.arrival - o->window_s)
		other->first++, other->n--;
	double p = o->selectivity, skip = p > 0 && p < 1 ? 1 / log1p(-p) : 0;
	for (uint64_t i = 0; p > 0 && i < other->n; i++) {
		if (skip != 0) { // as many draws that fail at once
			double misses = floor(log1p(-uniform(&o->draws)) * skip);
			if (misses >= (double)(other->n - i))
				break;
			i += (uint64_t)misses;
		}
		struct tuple u = other->tuples[other->first + i];
		if (u.arrival > t.arrival + o->window_s)
			break;
		emit(s, (struct tuple){ fmax(t.arrival, u.arrival), fmax(t.ideal, u.ideal),
					t.work + u.work, 0 });
	}
	if (own->first + own->n == own->space) {
		if (own->first > own->space / 2) {
			memmove(own->tuples, own->tuples + own->first, own->n * sizeof t);
			own->first = 0;
		} else {
			int64_t space = (int64_t)own->space;
			own->tuples = grow(own->tuples, &space, space ? 2 * space : 64, sizeof t);
			own->space = (uint64_t)space;
		}
	}
	own->tuples[own->first + own->n++] = t;
}

int64_t process(struct sim *s, int64_t op, struct tuple t, double cost)
{
	struct operator *o = &s->ops[op];
	int64_t base = s->out_n;
	t.ideal += cost;
	t.work += o->cost;
	if (o->window) {
		join(s, o, t);
	} else {
		double whole = floor(o->selectivity), part = o->selectivity - whole;
		int64_t n = (int64_t)whole;
		if (s->c.forced) {
			int64_t i = s->c.forced_start[op] + (int64_t)result(s, op)[SIM_DONE] - 1;
			n = i < s->c.forced_start[op + 1] ? s->c.forced[i] : n;
		} else if (part > 0 && uniform(&o->draws) < part) {
			n++;
		}
		for (int64_t i = 0; i < n; i++)
			emit(s, t);
	}
	result(s, op)[SIM_OUT] += (double)(s->out_n - base);
	return base;
}

int64_t route(struct sim *s, int64_t op, int64_t *taken)
{
	const struct operator *o = &s->ops[op];
	int64_t n = 0;
	double draw = -1;
	for (int64_t e = o->first; e < o->first + o->edges; e++) {
		double share = s->edge[e].share;
		if (share < 1) {
			if (draw < 0)
				draw = uniform(&s->ops[op].draws);
			double at = draw - s->edge[e].begin;
			at -= floor(at); // the shares lie on a circle of length 1
			if (at >= share)
				continue;
		}
		taken[n++] = e;
	}
	result(s, op)[SIM_SENT] += (double)n;
	return n;
}

static void count(int64_t *histogram, double value)
{
	uint64_t bits;
	memcpy(&bits, &value, sizeof bits);
	int64_t bucket = (int64_t)(bits >> 46) - ((1023 - 34) << 6);
	histogram[bucket < 0 ? 0 : bucket >= SIM_BUCKETS ? SIM_BUCKETS - 1 : bucket]++;
}

void leave(struct sim *s, int64_t op, struct tuple t, double at)
{
	double *r = result(s, op);
	r[SIM_LEFT]++;
	if (at >= s->c.warm_s && at < s->c.end_s)
		r[SIM_THROUGHPUT]++;
	if (t.arrival < s->c.warm_s)
		return;
	double response = at - t.arrival;
	r[SIM_DEPARTED]++;
	r[SIM_RESPONSE] += response;
	if (response > r[SIM_RESPONSE_MAX])
		r[SIM_RESPONSE_MAX] = response;
	if (response <= s->c.target_s[op])
		r[SIM_MET]++;
	count(s->c.response_histogram + SIM_BUCKETS * s->c.kind[op], response);
	if (t.work > 0) {
		double slowdown = 1 + (at - t.ideal) / t.work;
		r[SIM_WORKED]++;
		r[SIM_SLOWDOWN] += slowdown;
		r[SIM_SLOWDOWN_SQUARES] += slowdown * slowdown;
		if (slowdown > r[SIM_SLOWDOWN_MAX])
			r[SIM_SLOWDOWN_MAX] = slowdown;
		count(s->c.slowdown_histogram, slowdown);
	}
	int64_t row = (int64_t)s->c.totals[SIM_RECORDED];
	if (row < s->c.record_max) {
		double *record = s->c.record + 3 * row;
		record[0] = (double)op, record[1] = t.arrival, record[2] = at;
		s->c.totals[SIM_RECORDED]++;
	}
}

// --- calls from Python ---------------------------------------------------------------------------

EXPORT uint64_t sim_config_size(void) { return sizeof(struct sim_config); }

EXPORT struct sim *sim_new(const struct sim_config *c)
{
	struct sim *s = calloc(1, sizeof *s);
	s->c = *c;
	s->ops = table(c->operators, sizeof *s->ops);
	s->workers = calloc((size_t)c->cpus, sizeof *s->workers);
	s->cpus = calloc((size_t)c->cpus, sizeof *s->cpus);
	s->ready = calloc((size_t)c->operators + 1, sizeof *s->ready);
	s->timers = calloc((size_t)c->operators + 1, sizeof *s->timers);
	s->taken = calloc((size_t)c->out_start[c->operators] + 1, sizeof *s->taken);
	s->edge = table(c->out_start[c->operators], sizeof *s->edge);
	for (int64_t e = 0; e < c->out_start[c->operators]; e++)
		s->edge[e] = (struct edge){ c->out_share[e], c->out_begin[e],
					    (int32_t)c->out_target[e], (int16_t)c->out_port[e],
					    c->out_inline[e] != 0 };
	s->order = order_new(c->operators);
	for (int64_t i = 0; i < c->operators; i++) {
		struct operator *o = &s->ops[i];
		o->queue.ring = o->near;
		o->queue.mask = sizeof o->near / sizeof *o->near - 1;
		o->first = (int32_t)c->out_start[i];
		o->edges = (int32_t)(c->out_start[i + 1] - c->out_start[i]);
		o->blocks = c->block_probability[i] > 0;
		o->cost = c->cost_s[i];
		o->selectivity = c->selectivity[i];
		o->weight = 1024;
		o->window_s = c->window_s[i];
		if (o->window_s > 0)
			o->window = calloc(2, sizeof *o->window);
		// The k-th tuple of an operator has the same fate under every policy.
		o->draws = c->seed * 0xd1342543de82ef95 + (uint64_t)i * 0xaf251af3b0f025b5;
		o->costs = ~o->draws * 0xda942042e4dd58b5;
	}
	bool *sent_to = calloc((size_t)c->operators + 1, sizeof *sent_to);
	for (int64_t e = 0; e < c->out_start[c->operators]; e++)
		sent_to[c->out_target[e]] = true;
	for (int64_t k = 0; k < c->streams; k++)
		for (int64_t f = c->feed_start[k]; f < c->feed_start[k + 1]; f++)
			if (!sent_to[c->feed[f]])
				s->ops[c->feed[f]].queue.times = c->arrival_s + c->stream_start[k];
	free(sent_to);
	if (c->mode <= SIM_QUERY)
		user_start(s);
	else
		threads_start(s);
	return s;
}

EXPORT void sim_free(struct sim *s)
{
	for (int64_t i = 0; i < s->c.operators; i++) {
		struct operator *o = &s->ops[i];
		if (o->window) {
			free(o->window[0].tuples);
			free(o->window[1].tuples);
			free(o->window);
		}
		if (o->queue.ring != o->near)
			free(o->queue.ring);
		free(o->pending);
	}
	for (int64_t k = 0; k < s->c.cpus; k++)
		free(s->workers[k].pending);
	free(s->workers);
	free(s->cpus);
	free(s->ready);
	free(s->timers);
	free(s->taken);
	free(s->edge);
	free(s->out);
	free(s->ops);
	order_free(s->order);
	free(s);
}

// The urgency form, in groups of equal rank and per_second; ranks ascending, 0 is the most urgent.
EXPORT void sim_set_order(struct sim *s, const double *fixed, const double *per_tuple,
			  const int64_t *group_of, int64_t groups, const double *per_second,
			  const int64_t *rank_of_group, const int64_t *turns)
{
	int64_t n = 0;
	int64_t *waiting = malloc(((size_t)s->c.operators + 1) * sizeof *waiting);
	for (int64_t i = 0; i < s->c.operators; i++)
		if (order_has(s->order, i))
			waiting[n++] = i;
	order_set(s->order, fixed, per_tuple, group_of, groups, per_second, rank_of_group, turns,
		  s->c.rotate);
	for (int64_t i = 0; i < n; i++) {
		struct operator *o = &s->ops[waiting[i]];
		double age = s->c.mode <= SIM_QUERY || s->c.age == SIM_AGE_HEAD ?
				     front(s, waiting[i]).arrival :
			     s->c.age == SIM_AGE_INHERITED ? o->origin :
							     o->ready_since;
		order_insert(s->order, waiting[i], age, (double)length(o));
	}
	free(waiting);
}

EXPORT void sim_set_weights(struct sim *s, const double *weights)
{
	for (int64_t i = 0; i < s->c.operators; i++)
		s->ops[i].weight = weights[i];
}

// What a tuple costs from now on; one that is being worked on costs what it did.
EXPORT void sim_set_costs(struct sim *s, const double *cost_s)
{
	for (int64_t i = 0; i < s->c.operators; i++)
		s->ops[i].cost = cost_s[i];
}

// What a controller would measure now: (operators,) tuples waiting, age of the oldest.
EXPORT void sim_observe(const struct sim *s, double *queue_size, double *head_age_s)
{
	for (int64_t i = 0; i < s->c.operators; i++) {
		queue_size[i] = (double)length(&s->ops[i]);
		head_age_s[i] = queue_size[i] > 0 ? s->now - front(s, i).arrival : 0;
	}
}

// Run to the time `until`, or until nothing is left to do. Returns 1 while there is more.
EXPORT int sim_run(struct sim *s, double until)
{
	bool more = s->c.mode <= SIM_QUERY ? user_run(s, until) : threads_run(s, until);
	if (more)
		s->now = fmax(s->now, until);
	account_memory(s, 0);
	for (int64_t i = 0; i < s->c.operators; i++) {
		struct operator *o = &s->ops[i];
		touch(s, i, (double)length(o));
		if (length(o)) {
			result(s, i)[SIM_OCCUPIED] += s->now - o->occupied;
			o->occupied = s->now;
		}
	}
	s->c.totals[SIM_NOW] = s->now;
	return more;
}
