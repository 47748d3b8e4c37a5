// SPDX-License-Identifier: GPL-2.0-only
/*
 * An operating system: one thread an operator. A thread is
 *     SLEEPING  its queue is empty            READY    it waits for a CPU
 *     RUNNING   it is on one                  BLOCKED  a queue downstream is full
 *     WAITING   its tuple blocks, without CPU (a call to something outside)
 * One run queue for all CPUs, as if load balancing were perfect and free.
 *
 * SIM_FAIR is EEVDF, see fair.c.
 *
 * SIM_URGENCY is the scheduler of bpf/: the most urgent thread (order.c), a running thread is
 * kept at the end of its slice if it still wins, and wake-ups preempt only if so configured (which
 * with an endless slice is SCHED_FIFO). Its key is made when it becomes ready, from the queue size
 * then, and from the age of the work it carries: either that of its oldest tuple, or inherited: on
 * a wake-up by an operator the origin of the waker, else now. It is renewed while the thread stays
 * ready to run (renew_age() of bpf/order.bpf.h). Every rescue_s whoever has waited longest runs for a slice,
 * whatever its urgency, if that is longer than starvation_s (bpf/starve.bpf.h). A more urgent thread
 * of another query that wakes up preempts whoever runs once that has had least_s (bpf/fair.bpf.h).
 *
 * Costs: hop_s for each tuple an operator handles (its queues); wake_s for whoever wakes up a
 * thread; switch_s for each time that a CPU turns to another thread. A thread that wakes up another
 * and is preempted by it has to run once more: to emit what is left, or only to go to sleep. Tuples
 * from outside are brought
 * by a thread of a higher class, as network interrupts are: where it does not run already, it takes
 * the first CPU for source_s, both switches included. A fair scheduler then decides anew, for nobody
 * runs whom it would protect; under the BPF scheduler the interrupted thread goes on. Time slices end
 * at ticks, which come every tick_s.
 */
#include <math.h>
#include <string.h>

#include "sim.h"

// --- ready threads -------------------------------------------------------------------------------

static double origin(const struct sim *s, int64_t op)
{
	const struct operator *o = &s->ops[op];
	switch ((enum sim_age)s->c.age) {
	case SIM_AGE_INHERITED:
		return o->origin;
	case SIM_AGE_RUNNABLE:
		return o->ready_since;
	case SIM_AGE_HEAD:
		break;
	}
	return length(o) ? front(s, op).arrival : s->now;
}

static void ready_insert(struct sim *s, int64_t op)
{
	struct operator *o = &s->ops[op];
	o->state = READY;
	if (s->c.mode == SIM_URGENCY) {
		order_insert(s->order, op, origin(s, op), (double)length(o));
	} else {
		fair_insert(s, op);
	}
}

static int64_t ready_take(struct sim *s, int64_t running)
{
	int64_t op;
	if (s->c.mode == SIM_URGENCY) {
		op = order_best(s->order, s->now);
		if (op >= 0)
			order_remove(s->order, op);
	} else {
		op = fair_pick(s, running, true);
		if (op >= 0 && op != running)
			fair_remove(s, op);
	}
	return op;
}

// Who has waited too long, if it is time to look, else -1. From LONG_WAIT on every other slice is one
// for them, from LONGEST_WAIT on each.
#define LONG_WAIT 5.0
#define LONGEST_WAIT 15.0
#define HURRIED_SLICE 3e-3

static int64_t starved(struct sim *s, struct cpu *c)
{
	if (s->c.mode != SIM_URGENCY || s->c.starvation_s <= 0 || s->now < c->next_rescue)
		return -1;
	int64_t found = -1;
	double since = s->now - s->c.starvation_s, every = s->c.rescue_s;
	for (int64_t i = 0; i < s->c.operators; i++)
		if (s->ops[i].state == READY && s->ops[i].ready_since < since)
			since = s->ops[i].ready_since, found = i;
	if (found >= 0 && s->now - since > LONG_WAIT)
		every = s->now - since > LONGEST_WAIT ? 0 : fmin(every, 2 * HURRIED_SLICE);
	c->next_rescue = s->now + every;
	return found;
}

// A thread that ran and goes on went through its queue, and what is first there came in later.
#define STANDING 0.1

static double outside_origin(const struct sim *s, int64_t op)
{
	return s->now - (s->c.came_s ? s->c.came_s[op] : 0);
}

static void renew_age(struct sim *s, int64_t op)
{
	struct operator *o = &s->ops[op];
	if (s->c.mode != SIM_URGENCY || s->c.age != SIM_AGE_INHERITED)
		return;
	if (s->c.rivals && s->now - o->woken > STANDING)
		o->origin = s->now;
	else if (o->outside)
		o->origin = outside_origin(s, op);
	else
		o->origin = fmin(o->origin + 2 * o->ran, s->now);
	o->ran = 0;
}

// --- timers: a binary heap by wake_at --------------------------------------------------------------

static bool sooner(const struct sim *s, int64_t a, int64_t b)
{
	return s->ops[a].wake_at < s->ops[b].wake_at;
}

static void timer_add(struct sim *s, int64_t op)
{
	int64_t i = s->timers_n++;
	for (; i > 0 && sooner(s, op, s->timers[(i - 1) / 2]); i = (i - 1) / 2)
		s->timers[i] = s->timers[(i - 1) / 2];
	s->timers[i] = op;
}

static int64_t timer_take(struct sim *s)
{
	int64_t first = s->timers[0], op = s->timers[--s->timers_n], i = 0;
	for (;;) {
		int64_t child = 2 * i + 1;
		if (child >= s->timers_n)
			break;
		if (child + 1 < s->timers_n && sooner(s, s->timers[child + 1], s->timers[child]))
			child++;
		if (!sooner(s, s->timers[child], op))
			break;
		s->timers[i] = s->timers[child];
		i = child;
	}
	s->timers[i] = op;
	return first;
}

// --- CPUs ------------------------------------------------------------------------------------------

static void charge(struct sim *s, struct cpu *c)
{
	double ran = s->now - c->accounted;
	if (c->op < 0 || ran <= 0)
		return;
	c->accounted = s->now;
	struct operator *o = &s->ops[c->op];
	o->left -= ran;
	o->ran += ran;
	o->spent += ran;
	c->had += ran;
	if (s->c.mode == SIM_FAIR)
		o->vruntime += ran * FAIR_UNIT / o->weight;
	result(s, c->op)[SIM_CPU] += ran;
	s->c.totals[SIM_BUSY] += ran;
}

static void next_check(struct sim *s, struct cpu *c)
{
	double slice = s->c.slice_s[c->op];
	if (s->c.mode == SIM_FAIR) {
		const struct operator *o = &s->ops[c->op];
		double end = s->c.tick_s > 0 ? o->protected_until : o->deadline;
		slice = fmax(0, (end - o->vruntime) * o->weight / FAIR_UNIT);
	}
	c->check = s->now + slice;
	if (s->c.tick_s > 0 && c->check < INFINITY) {
		double tick = ceil(c->check / s->c.tick_s) * s->c.tick_s;
		c->check = tick > s->now ? tick : tick + s->c.tick_s;
	}
}

static void load_tuple(struct sim *s, int64_t op)
{
	struct operator *o = &s->ops[op];
	o->drawn = draw_cost(s, op);
	o->left = o->drawn + s->c.hop_s;
}

#define FREE -2 // in place of a CPU's last thread: the next switch has been paid for

static void run(struct sim *s, struct cpu *c, int64_t op)
{
	struct operator *o = &s->ops[op];
	c->op = op;
	c->accounted = fmax(s->now, c->free_at);
	c->resched = false;
	o->state = RUNNING;
	if (s->c.mode == SIM_FAIR)
		fair_begin(s, op);
	c->had = 0;
	c->claim = INFINITY;
	o->left += c->debt_s;
	c->debt_s = 0;
	if (c->last != op && c->last != FREE) {
		o->left += s->c.switch_s;
		s->c.totals[SIM_SWITCHES]++;
	}
	c->last = op;
	next_check(s, c);
}

static void dispatch(struct sim *s, struct cpu *c)
{
	int64_t op = starved(s, c);
	if (op >= 0)
		order_remove(s->order, op);
	else
		op = ready_take(s, -1);
	s->c.totals[SIM_DECISIONS]++;
	if (op < 0) {
		c->op = -1;
		c->last = -1; // the idle thread
		c->free_at = fmax(c->free_at, s->now + c->debt_s);
		c->debt_s = 0;
		return;
	}
	run(s, c, op);
}

// The running thread gives way to whoever is next, if that is another.
static void preempt(struct sim *s, struct cpu *c)
{
	int64_t op = c->op;
	c->resched = false;
	if (s->c.mode == SIM_FAIR) {
		int64_t next = ready_take(s, op);
		s->c.totals[SIM_DECISIONS]++;
		if (next == op) {
			next_check(s, c);
			return;
		}
		ready_insert(s, op);
		run(s, c, next);
		return;
	}
	c->op = -1;
	renew_age(s, op);
	s->ops[op].ready_since = s->now;
	ready_insert(s, op);
	dispatch(s, c);
}

// outranks() of bpf/fair.bpf.h: inside a query a batch goes on.
static bool outranks(const struct sim *s, int64_t woken, int64_t running)
{
	return s->c.query[woken] != s->c.query[running] &&
	       order_beats(s->order, woken, running, origin(s, running), (double)length(&s->ops[running]),
			   s->now) &&
	       (order_ranks_above(s->order, woken, running) || s->ops[woken].burst < s->c.slice_s[running]);
}

static void consider_preemption(struct sim *s, struct cpu *c, int64_t woken)
{
	struct operator *running = &s->ops[c->op];
	if (s->c.mode == SIM_URGENCY) {
		if (s->c.least_s > 0 && c->claim == INFINITY && outranks(s, woken, c->op))
			c->claim = fmax(s->now, c->accounted) + fmax(0, s->c.least_s - c->had);
		if (s->c.wake_preempt && order_beats(s->order, woken, c->op, origin(s, c->op),
						     (double)length(running), s->now))
			c->resched = true;
		return;
	}
	fair_update(s, c->op); // as check_preempt_wakeup_fair() of kernel/sched/fair.c
	if (!fair_protected(s, c->op) ||
	    (s->c.wake_preempt && fair_pick(s, c->op, true) == woken))
		c->resched = true;
}

// waker: the operator; FROM_TIMER; FROM_SOURCE: the thread that interrupts CPU 0
enum { FROM_TIMER = -1, FROM_SOURCE = -2 };

static void wake(struct sim *s, int64_t op, int64_t waker)
{
	struct operator *o = &s->ops[op];
	bool back = waker >= 0 && o->state == BLOCKED; // it got room, not work: first in, first out
	if (back)
		o->origin = o->outside ? outside_origin(s, op) : fmax(o->origin, s->ops[waker].origin);
	else
		o->origin = waker < 0 ? outside_origin(s, op) : s->ops[waker].origin;
	o->outside = back ? o->outside : waker < 0;
	o->ready_since = o->woken = s->now;
	o->ran = o->spent = 0;
	for (int64_t k = 0; k < s->c.cpus; k++)
		charge(s, &s->cpus[k]);
	if (s->c.mode == SIM_FAIR)
		fair_wake(s, op);
	if (s->c.mode == SIM_FAIR && o->ready_at >= 0)
		o->state = READY; // it had not been taken out of the list
	else
		ready_insert(s, op);
	int64_t at = op % s->c.cpus, idle = -1;
	for (int64_t k = 0; k < s->c.cpus; k++) {
		if (waker >= 0 && s->cpus[k].op == waker)
			at = k;
		if (idle < 0 && s->cpus[k].op < 0)
			idle = k;
	}
	if (waker >= 0 && s->cpus[at].op == waker)
		s->cpus[at].debt_s += s->c.wake_s;
	if (idle >= 0)
		dispatch(s, &s->cpus[idle]);
	else if (waker != FROM_SOURCE || s->c.mode == SIM_URGENCY)
		consider_preemption(s, &s->cpus[at], op);
}

// --- tuples ----------------------------------------------------------------------------------------

// Producers that wait for room in the queue of `op` go on when it is down to half.
static void release_producers(struct sim *s, int64_t op)
{
	if (!s->c.capacity || (int64_t)length(&s->ops[op]) != s->c.capacity / 2)
		return;
	for (int64_t u = 0; u < s->c.operators; u++) {
		struct operator *o = &s->ops[u];
		if (o->state == BLOCKED && s->edge[o->pending[o->pending_next].edge].target == op)
			wake(s, u, op);
	}
}

enum flushed { FLUSHED, FULL, PREEMPTED };

static enum flushed flush(struct sim *s, struct cpu *c)
{
	int64_t op = c->op;
	struct operator *o = &s->ops[op];
	while (o->pending_next < o->pending_n) {
		int64_t e = o->pending[o->pending_next].edge, to = s->edge[e].target;
		if (s->c.capacity && (int64_t)length(&s->ops[to]) >= s->c.capacity)
			return FULL;
		struct tuple t = o->pending[o->pending_next++].tuple;
		t.port = s->edge[e].port;
		push(s, to, t);
		if (s->ops[to].state == SLEEPING) {
			load_tuple(s, to);
			wake(s, to, op);
			if (c->resched)
				return PREEMPTED;
		}
	}
	o->pending_n = o->pending_next = 0;
	return FLUSHED;
}

static void stop(struct sim *s, struct cpu *c, enum thread_state state)
{
	int64_t op = c->op;
	s->ops[op].state = state;
	s->ops[op].burst += (s->ops[op].spent - s->ops[op].burst) / 4;
	c->op = -1;
	if (s->c.mode == SIM_FAIR)
		fair_sleep(s, op);
	dispatch(s, c);
}

// The outputs are out; go on with the next tuple, or sleep.
static void go_on(struct sim *s, struct cpu *c)
{
	int64_t op = c->op;
	if (!length(&s->ops[op])) {
		stop(s, c, SLEEPING);
		return;
	}
	load_tuple(s, op);
	s->ops[op].left += c->debt_s;
	c->debt_s = 0;
	if (c->resched)
		preempt(s, c);
}

static void emit(struct sim *s, struct cpu *c)
{
	switch (flush(s, c)) {
	case FLUSHED:
		go_on(s, c);
		break;
	case FULL:
		stop(s, c, BLOCKED);
		break;
	case PREEMPTED:
		s->ops[c->op].left = c->debt_s;
		c->debt_s = 0;
		preempt(s, c);
	}
}

static void finish(struct sim *s, struct cpu *c)
{
	int64_t op = c->op;
	struct operator *o = &s->ops[op];
	if (o->pending_n) { // it was blocked or preempted with outputs, or waited before it emitted
		o->wake_at = 0;
		emit(s, c);
		return;
	}
	if (o->wake_at < 0) { // back from a wait of a tuple without outputs
		o->wake_at = 0;
		go_on(s, c);
		return;
	}
	struct tuple t = pop(s, op);
	int64_t base = process(s, op, t, o->drawn);
	bool egress = !o->edges;
	double block = draw_block(s, op);
	for (int64_t i = base; i < s->out_n; i++) {
		if (egress) {
			leave(s, op, s->out[i], s->now + block);
			continue;
		}
		int64_t n = route(s, op, s->taken);
		o->pending = grow(o->pending, &o->pending_space, o->pending_n + n, sizeof *o->pending);
		for (int64_t k = 0; k < n; k++)
			o->pending[o->pending_n++] = (struct pending){ s->out[i], s->taken[k] };
	}
	s->out_n = base;
	release_producers(s, op);
	if (block > 0) {
		o->wake_at = s->now + block;
		timer_add(s, op);
		stop(s, c, WAITING);
	} else {
		emit(s, c);
	}
}

static void check(struct sim *s, struct cpu *c)
{
	struct operator *o = &s->ops[c->op];
	if (s->c.mode == SIM_FAIR) {
		fair_update(s, c->op);
		if (s->ready_n)
			preempt(s, c);
		else
			next_check(s, c);
		return;
	}
	renew_age(s, c->op);
	bool claimed = c->had < s->c.slice_s[c->op] && s->now >= c->claim;
	int64_t late = starved(s, c), best = order_best(s->order, s->now);
	c->claim = INFINITY;
	if (claimed && best >= 0 && s->c.query[best] == s->c.query[c->op])
		best = -1; // inside a query a batch goes on
	if (late >= 0) {
		int64_t op = c->op;
		s->ops[op].ready_since = s->now;
		ready_insert(s, op);
		order_remove(s->order, late);
		s->c.totals[SIM_DECISIONS]++;
		run(s, c, late);
	} else if (best >= 0 && order_beats(s->order, best, c->op, origin(s, c->op), (double)length(o), s->now))
		preempt(s, c);
	else if (!claimed) {
		c->had = 0;
		next_check(s, c);
	}
}

// --- the clock ---------------------------------------------------------------------------------------

void threads_start(struct sim *s)
{
	for (int64_t k = 0; k < s->c.cpus; k++)
		s->cpus[k].op = s->cpus[k].last = -1;
	for (int64_t i = 0; i < s->c.operators; i++)
		s->ops[i].ready_at = -1;
}

// The thread of the sources runs for `cost` on this CPU.
static void interrupt(struct sim *s, struct cpu *c, double cost)
{
	double *until = c->op < 0 ? &c->free_at : &c->accounted;
	*until = fmax(*until, s->now) + cost;
	c->claim += cost;
	s->source_until = *until;
	s->c.totals[SIM_BUSY] += cost;
}

static void arrive(struct sim *s)
{
	int64_t stream = s->c.order[s->arrived++];
	struct cpu *c = &s->cpus[0];
	bool interrupts = s->c.source_s > 0 && s->now >= s->source_until;
	if (interrupts) {
		if (c->op >= 0)
			renew_age(s, c->op);
		interrupt(s, c, s->c.source_s);
		s->c.totals[SIM_SWITCHES] += 1 + (c->op >= 0);
	}
	for (int64_t f = s->c.feed_start[stream]; f < s->c.feed_start[stream + 1]; f++) {
		int64_t op = s->c.feed[f];
		if (s->c.source_s > 0)
			interrupt(s, c, s->c.hop_s + (s->ops[op].state == SLEEPING ? s->c.wake_s : 0));
		feed(s, op);
		if (s->ops[op].state == SLEEPING) {
			load_tuple(s, op);
			wake(s, op, s->c.source_s > 0 ? FROM_SOURCE : FROM_TIMER);
		}
	}
	if (interrupts && s->c.mode == SIM_FAIR && c->op >= 0 && s->ready_n) {
		int64_t op = c->op; // it was put back: nobody is protected
		double until = c->accounted;
		fair_update(s, op);
		fair_insert(s, op);
		c->op = -1;
		int64_t next = ready_take(s, -1);
		c->last = FREE;
		s->ops[op].state = READY;
		run(s, c, next);
		c->accounted = until;
	}
	// Who has used up its slice is not left where it is, but has to win again.
	if (interrupts && s->c.mode == SIM_URGENCY && c->op >= 0 && c->had >= s->c.slice_s[c->op]) {
		c->free_at = c->accounted;
		c->last = FREE;
		check(s, c);
		c->last = c->op;
	}
}

bool threads_run(struct sim *s, double until)
{
	for (;;) {
		double at = next_arrival(s);
		int64_t which = -1; // -1: arrival, -2: timer, else CPU
		if (s->timers_n && s->ops[s->timers[0]].wake_at < at)
			at = s->ops[s->timers[0]].wake_at, which = -2;
		bool done = false; // the CPU's tuple, rather than its slice
		for (int64_t k = 0; k < s->c.cpus; k++) {
			struct cpu *c = &s->cpus[k];
			if (c->op < 0)
				continue;
			double end = c->accounted + s->ops[c->op].left, look = fmin(c->check, c->claim);
			if (end <= look ? end < at : look < at) {
				done = end <= look;
				at = done ? end : look;
				which = k;
			}
		}
		if (at == INFINITY)
			return false;
		if (at > until)
			return true;
		s->now = fmax(s->now, at);
		for (int64_t k = 0; k < s->c.cpus; k++)
			charge(s, &s->cpus[k]);
		if (which == -1) {
			arrive(s);
		} else if (which == -2) {
			int64_t op = timer_take(s);
			s->ops[op].wake_at = -1;
			s->ops[op].left = 0;
			wake(s, op, FROM_TIMER);
		} else if (done) {
			s->ops[s->cpus[which].op].left = 0;
			finish(s, &s->cpus[which]);
		} else {
			check(s, &s->cpus[which]);
		}
		for (int64_t k = 0; k < s->c.cpus; k++)
			if (s->cpus[k].op >= 0 && s->cpus[k].resched)
				preempt(s, &s->cpus[k]);
	}
}
