#include "engine.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "histogram.h"
#include "join.h"
#include "live.h"
#include "util.h"

enum draw { DRAW_FILTER = 1, DRAW_SPLIT, DRAW_BLOCK, DRAW_BLOCK_TIME };

/* A random number that belongs to this tuple at this operator, whenever it gets there. */
static double draw(uint64_t id, enum draw purpose)
{
	return uniform(mix(id + (uint64_t)purpose));
}

/* --- observing --------------------------------------------------------------------------------- */

void activity_change(struct activity_row *activity, enum activity_state state)
{
	uint64_t now = now_ns(), spent = now - get(activity->since_ns);

	switch ((enum activity_state)get(activity->state)) {
	case IDLE: add(activity->idle_ns, spent); break;
	case BUSY: add(activity->busy_ns, spent); break;
	case BLOCKED: add(activity->blocked_ns, spent); break;
	case SLEEPING: add(activity->slept_ns, spent); break;
	}
	set(activity->since_ns, now);
	set(activity->state, state);
}

static void depart(struct operator *op, const struct tuple *tuple)
{
	struct egress_row *egress = op->egress;
	uint64_t now = now_ns(), latency = now - tuple->due_ns, processing = now - tuple->entry_ns;
	double slowdown;

	if (tuple->due_ns < op->engine->record_from_ns)
		return;
	/* 1 + delay / T (Sharaf et al. 2006, section 5); without joins that is latency / T. */
	slowdown = 1 + ((double)latency - tuple->alone_ns) / (tuple->ideal_ns ? tuple->ideal_ns : 1);
	slowdown = slowdown > 0 ? slowdown : 0;
	add(egress->departures, 1);
	add(egress->latency_ns, (double)latency);
	add(egress->processing_ns, (double)processing);
	add(egress->slowdown, slowdown);
	add(egress->slowdown_squared, slowdown * slowdown);
	if (latency > get(egress->latency_max_ns))
		set(egress->latency_max_ns, latency);
	if (processing > get(egress->processing_max_ns))
		set(egress->processing_max_ns, processing);
	if (slowdown > get(egress->slowdown_max))
		set(egress->slowdown_max, slowdown);
	add(egress->latency_histogram[histogram_bucket(latency)], 1);
	add(egress->processing_histogram[histogram_bucket(processing)], 1);
	add(egress->slowdown_histogram[histogram_bucket((uint64_t)(slowdown * SLOWDOWN_UNIT))], 1);
	if (!op->engine->options.record)
		return;
	if (!(op->recorded & (op->recorded - 1)))
		op->record = grow(op->record, op->recorded ? 2 * op->recorded : 1,
				  sizeof *op->record);
	op->record[op->recorded++] = (struct departure){tuple->due_ns, tuple->entry_ns, now,
							(uint32_t)op->row, tuple->ideal_ns};
}

/* --- a tuple in an operator -------------------------------------------------------------------- */

static void wait_for_room(struct engine *engine, struct operator *by, struct queue *queue)
{
	uint64_t capacity = engine->options.capacity;

	if (queue_length(queue) < capacity)
		return;
	activity_change(by->activity, BLOCKED);
	while (!atomic_load(&engine->stop)) {
		atomic_store(&queue->producer_waits, 1);
		if (queue_length(queue) < capacity || atomic_load(&engine->stop))
			break;
		futex_wait(&queue->producer_waits, 1);
	}
	atomic_store(&queue->producer_waits, 0);
	activity_change(by->activity, BUSY);
}

void engine_push(struct engine *engine, struct operator *by, struct queue *queue,
		 struct operator *target, const struct tuple *tuple)
{
	if (by && engine->options.capacity && !engine->options.workers)
		wait_for_room(engine, by, queue);
	queue_push(queue, tuple);
	live_changed(engine, target);
	engine->notify(target);
}

static void emit(struct operator *op, const struct tuple *tuple)
{
	double where = 0;

	add(op->activity->out, 1);
	if (op->egress) {
		depart(op, tuple);
		return;
	}
	for (size_t i = 0; i < op->output_count; i++) {
		const struct output *output = &op->outputs[i];

		if (output->share < 1) {
			where = where ? where : draw(tuple->id, DRAW_SPLIT);
			/* Distance from the beginning of the edge's part, around the circle. */
			if (where - output->from - floor(where - output->from) >= output->share)
				continue;
		}
		engine_push(op->engine, op, output->queue, output->target, tuple);
	}
}

/* Passes on what a tuple becomes: selectivity outputs in the mean. */
static void emit_selected(struct operator *op, struct tuple *tuple)
{
	double whole = floor(op->spec->selectivity);
	uint64_t id = mix(tuple->id ^ op->key), count = (uint64_t)whole;

	count += draw(id, DRAW_FILTER) < op->spec->selectivity - whole;
	for (uint64_t i = 0; i < count; i++) {
		tuple->id = mix(id + (i << 8));
		emit(op, tuple);
	}
}

/* Passes on what a tuple of one input joins with on the other. */
static void emit_joined(struct operator *op, size_t side, const struct tuple *tuple)
{
	const struct tuple *partner;

	join_insert(op->join, side, tuple);
	for (size_t i = 0; (partner = join_partner(op->join, side, i)); i++) {
		const struct tuple *left = side ? partner : tuple, *right = side ? tuple : partner;
		/* Made of both in this order, so it does not matter which came first. */
		uint64_t id = mix(mix(left->id ^ op->key) ^ right->id);
		struct tuple made = left->due_ns > right->due_ns ? *left : *right;

		if (draw(id, DRAW_FILTER) >= op->spec->selectivity)
			continue;
		made.id = id;
		made.ideal_ns = left->ideal_ns + right->ideal_ns;
		made.entry_ns = left->entry_ns > right->entry_ns ? left->entry_ns : right->entry_ns;
		emit(op, &made);
	}
}

/* The input whose head is due first, or NULL. */
static struct queue *oldest_input(struct operator *op)
{
	struct queue *oldest = NULL;
	uint64_t due = UINT64_MAX;

	for (size_t i = 0; i < op->input_count; i++) {
		const struct tuple *head = queue_peek(&op->inputs[i]);

		if (head && head->due_ns < due) {
			due = head->due_ns;
			oldest = &op->inputs[i];
		}
	}
	return oldest;
}

static void block_maybe(struct operator *op, uint64_t id)
{
	uint64_t ns;

	if (op->spec->block_probability <= 0 ||
	    draw(id, DRAW_BLOCK) >= op->spec->block_probability)
		return;
	ns = (uint64_t)(draw(id, DRAW_BLOCK_TIME) * op->spec->block_max_ms * 1e6);
	if (!op->engine->options.workers)
		activity_change(op->activity, SLEEPING);
	nanosleep(&(struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)}, NULL);
	if (!op->engine->options.workers)
		activity_change(op->activity, BUSY);
}

bool operator_step(struct operator *op)
{
	struct queue *input = oldest_input(op);
	struct tuple tuple;

	if (!input)
		return false;
	tuple = *queue_peek(input);
	if (op->ingress)
		tuple.entry_ns = now_ns();
	tuple.ideal_ns += (uint32_t)op->cost_ns;
	tuple.alone_ns += (uint32_t)op->cost_ns;
	burn(op->engine->options.burn, op->burn_steps);
	block_maybe(op, tuple.id ^ op->key);
	if (op->join)
		emit_joined(op, (size_t)(input - op->inputs), &tuple);
	else
		emit_selected(op, &tuple);
	add(op->activity->in, 1);
	queue_pop(input);
	live_changed(op->engine, op);
	if (atomic_load(&input->producer_waits) &&
	    queue_length(input) <= op->engine->options.capacity / 2 &&
	    atomic_exchange(&input->producer_waits, 0))
		futex_wake(&input->producer_waits, 1);
	return true;
}

/* --- asking ------------------------------------------------------------------------------------ */

bool operator_has_input(struct operator *op)
{
	for (size_t i = 0; i < op->input_count; i++)
		if (queue_length(&op->inputs[i]))
			return true;
	return false;
}

uint64_t operator_queue(struct operator *op)
{
	uint64_t length = 0;

	for (size_t i = 0; i < op->input_count; i++)
		length += queue_length(&op->inputs[i]);
	return length;
}

uint64_t operator_head_due(struct operator *op)
{
	uint64_t due = 0;

	for (size_t i = 0; i < op->input_count; i++)
		if (queue_length(&op->inputs[i])) {
			uint64_t head = get(op->inputs[i].consumed->head_due_ns);

			due = !due || head < due ? head : due;
		}
	return due;
}

bool operator_has_room(const struct operator *op)
{
	uint64_t capacity = op->engine->options.capacity;

	for (size_t i = 0; capacity && i < op->output_count; i++)
		if (queue_length(op->outputs[i].queue) >= capacity)
			return false;
	return true;
}

/* --- building ---------------------------------------------------------------------------------- */

static void build_operator(struct engine *engine, size_t row)
{
	struct operator *op = &engine->operators[row];
	const struct operator_spec *spec = &engine->workload.operators[row];
	struct operator_row *shown = &engine->shared.operators[row];
	double cost_ns = spec->cost * engine->options.base_cost_us * 1e3;

	if (cost_ns > 1e9)
		die("operator %s costs %.3g s a tuple: at most 1", spec->name, cost_ns * 1e-9);
	op->engine = engine;
	op->spec = spec;
	op->name = spec->name;
	op->row = row;
	op->cost_ns = (uint64_t)(cost_ns + 0.5);
	op->burn_steps = (uint64_t)(cost_ns / engine->options.step_ns + 0.5);
	op->key = mix(engine->options.seed) ^ mix((uint64_t)row + 1);
	op->activity = &engine->shared.activity[row];
	if (spec->window_ms > 0)
		op->join = join_new((uint64_t)(spec->window_ms * 1e6));
	memcpy(shown->name, spec->name, NAME_BYTES);
	set(shown->query, spec->query);
	set(shown->cost_ns, cost_ns);
	set(shown->selectivity, spec->selectivity);
}

void engine_build(struct engine *engine)
{
	const struct workload *w = &engine->workload;
	size_t *filled = allocate(w->operator_count, sizeof *filled), egress = 0, output = 0;
	double *circle = allocate(w->operator_count, sizeof *circle);

	engine->operators = allocate_lines(w->operator_count, sizeof *engine->operators);
	engine->queues = allocate_lines(w->edge_count, sizeof *engine->queues);
	engine->outputs = allocate(w->edge_count, sizeof *engine->outputs);
	for (size_t i = 0; i < w->query_count; i++) {
		memcpy(engine->shared.queries[i].name, w->queries[i].name, NAME_BYTES);
		memcpy(engine->shared.queries[i].class, w->queries[i].class, NAME_BYTES);
	}
	for (size_t i = 0; i < w->operator_count; i++) {
		struct operator *op = &engine->operators[i];

		build_operator(engine, i);
		op->outputs = &engine->outputs[output];
		output += (size_t)w->operators[i].outputs;
		if (!w->operators[i].outputs) {
			op->egress = &engine->shared.egresses[egress++];
			set(op->egress->operator, i);
		}
	}
	for (size_t i = 0; i < w->edge_count; i++) {
		const struct edge_spec *edge = &w->edges[i];
		struct operator *target = &engine->operators[edge->target];
		struct edge_row *shown = &engine->shared.edges[i];

		queue_init(&engine->queues[i], &engine->shared.produced[i],
			   &engine->shared.consumed[i]);
		if (!target->input_count++)
			target->inputs = &engine->queues[i];
		set(shown->source, edge->source == SIZE_MAX ? OUTSIDE : edge->source);
		set(shown->target, edge->target);
		set(shown->share, edge->share);
		if (edge->source == SIZE_MAX) {
			target->ingress = true;
			set(engine->shared.operators[edge->target].ingress, 1);
			continue;
		}
		engine->operators[edge->source].outputs[filled[edge->source]++] = (struct output){
			&engine->queues[i], target, circle[edge->source], edge->share};
		engine->operators[edge->source].output_count++;
		if (edge->share < 1)
			circle[edge->source] += edge->share - floor(circle[edge->source] + edge->share);
	}
	free(filled);
	free(circle);
}

void engine_free(struct engine *engine)
{
	struct workload *w = &engine->workload;

	for (size_t i = 0; i < w->edge_count; i++) {
		queue_free(&engine->queues[i]);
		free(w->edges[i].trace);
	}
	for (size_t i = 0; i < w->operator_count; i++) {
		join_free(engine->operators[i].join);
		free(engine->operators[i].record);
	}
	free(engine->operators);
	free(engine->queues);
	free(engine->outputs);
	free(engine->levels);
	free(w->queries);
	free(w->operators);
	free(w->edges);
	free(w->order);
}

void thread_enter(struct thread_row *row, const char *name, const char *role)
{
	char shown[16];

	snprintf(shown, sizeof shown, "%.15s", name);
	pthread_setname_np(pthread_self(), shown);
	snprintf(row->name, sizeof row->name, "%s", name);
	snprintf(row->role, sizeof row->role, "%s", role);
	set(row->start_time, start_time((uint64_t)gettid()));
	set(row->tid, (uint64_t)gettid());
}
