/* Open-loop sources: tuples are due at times that depend on the seed alone, carry that time, and
 * are put into the ingress's queue then, or at once when the thread is late; so latency counts all
 * waiting. The thread stands for the network: it runs as SCHED_FIFO where that is allowed. */
#include <math.h>
#include <sched.h>
#include <string.h>

#include "engine.h"
#include "util.h"

struct source {
	size_t edge;
	uint64_t random, count;
	double rate;              /* tuples/s */
	double due_s;             /* of the next tuple, from the epoch */
	double phase_end_s;       /* of the On or Off period */
	bool on;
};

static pthread_t thread;
static struct engine *engine;
static struct source *sources, **heap; /* the earliest due on top */
static size_t source_count, thread_row;

static double next_uniform(struct source *s)
{
	s->random += UINT64_C(0x9e3779b97f4a7c15);
	return uniform(mix(s->random));
}

static double exponential(struct source *s, double mean) { return -log(1 - next_uniform(s)) * mean; }

/* Length of an On or Off period: exponential, or Pareto of this shape. */
static double period(struct source *s, double mean, double shape)
{
	if (shape <= 0)
		return exponential(s, mean);
	return mean * (shape - 1) / shape * pow(1 - next_uniform(s), -1 / shape);
}

static void next_onoff(struct source *s, const struct edge_spec *edge)
{
	double on = edge->on_ms * 1e-3, off = edge->off_ms * 1e-3;
	double burst = s->rate * (on + off) / on;

	for (;;) {
		double due = s->due_s + exponential(s, 1 / burst);

		if (s->on && due <= s->phase_end_s) {
			s->due_s = due;
			return;
		}
		/* Memoryless: what is left of the gap is drawn anew in the next On period. */
		s->due_s = s->phase_end_s;
		s->on = !s->on;
		s->phase_end_s += period(s, s->on ? on : off, edge->shape);
	}
}

static void next_due(struct source *s)
{
	const struct edge_spec *edge = &engine->workload.edges[s->edge];
	double length;

	switch (edge->arrivals) {
	case CONSTANT:
		/* Sources of one rate are out of phase. */
		s->due_s += s->count ? 1 / s->rate : next_uniform(s) / s->rate;
		break;
	case POISSON:
		s->due_s += exponential(s, 1 / s->rate);
		break;
	case ONOFF:
		next_onoff(s, edge);
		break;
	case TRACE: /* stretched to the rate, and over and over */
		length = (double)edge->trace_length / s->rate;
		s->due_s = length * ((double)(s->count / edge->trace_length) +
				     edge->trace[s->count % edge->trace_length]);
		break;
	}
	s->count++;
}

static void sift_down(size_t at)
{
	struct source *moved = heap[at];

	for (size_t child; (child = 2 * at + 1) < source_count; at = child) {
		if (child + 1 < source_count && heap[child + 1]->due_s < heap[child]->due_s)
			child++;
		if (moved->due_s <= heap[child]->due_s)
			break;
		heap[at] = heap[child];
	}
	heap[at] = moved;
}

static void emit(struct source *s, uint64_t due_ns)
{
	struct tuple tuple = {.due_ns = due_ns};
	size_t target = engine->workload.edges[s->edge].target;

	tuple.id = mix(mix(engine->options.seed ^ mix((uint64_t)s->edge)) + s->count);
	engine_push(engine, NULL, &engine->queues[s->edge], &engine->operators[target], &tuple);
}

static void *run(void *nothing)
{
	uint64_t now = 0;

	thread_enter(&engine->shared.threads[thread_row], "sources", "source");
	if (!engine->options.generator_fair) {
		struct sched_param top = {.sched_priority = 98};

		pthread_setschedparam(pthread_self(), SCHED_FIFO, &top); /* or as it is */
	}
	while (!atomic_load(&engine->stop)) {
		struct source *s = heap[0];
		uint64_t due = engine->epoch_ns + (uint64_t)(s->due_s * 1e9);

		if (s->due_s >= engine->options.duration_s)
			break;
		if (due > now)
			now = now_ns();
		while (due > now && !atomic_load(&engine->stop)) {
			/* Not longer than the stop may take. */
			uint64_t until = due - now > 200000000 ? now + 200000000 : due;
			struct timespec t = {(time_t)(until / 1000000000), (long)(until % 1000000000)};

			clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
			now = now_ns();
		}
		if (due > now)
			break;
		emit(s, due);
		next_due(s);
		sift_down(0);
	}
	atomic_store(&engine->generated, true);
	return nothing;
}

void sources_start(struct engine *e, size_t row)
{
	int error;

	engine = e;
	thread_row = row;
	sources = allocate(e->workload.edge_count, sizeof *sources);
	heap = allocate(e->workload.edge_count, sizeof *heap);
	for (size_t i = 0; i < e->workload.edge_count; i++) {
		const struct edge_spec *edge = &e->workload.edges[i];
		struct source *s = &sources[source_count];

		if (edge->source != SIZE_MAX)
			continue;
		s->edge = i;
		s->random = mix(e->options.seed) ^ mix((uint64_t)edge->target + (1u << 30));
		s->rate = e->scale * edge->rate;
		if (edge->arrivals == ONOFF) {
			double on = edge->on_ms, off = edge->off_ms;

			s->on = next_uniform(s) < on / (on + off);
			s->phase_end_s = period(s, (s->on ? on : off) * 1e-3, edge->shape);
		}
		next_due(s);
		heap[source_count++] = s;
	}
	for (size_t i = source_count; i-- > 0;)
		sift_down(i);
	error = pthread_create(&thread, NULL, run, NULL);
	if (error)
		die("cannot start the sources: %s", strerror(error));
}

void sources_join(void)
{
	pthread_join(thread, NULL);
	free(sources);
	free(heap);
}
