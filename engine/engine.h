/* The running queries: operators, the queues between them, and what one tuple does in one operator.
 * Who calls an operator, a thread of its own or a pool's worker, is decided in threads.c and pool.c.
 */
#ifndef LABSPE_ENGINE_H
#define LABSPE_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "burn.h"
#include "layout.h"
#include "queue.h"
#include "workload.h"

struct engine;
struct join;

struct output {
	struct queue *queue;
	struct operator *target;
	double from, share; /* the part of the circle [0, 1) of draws that takes this edge */
};

/* One period of the elastic pool. level: workers at work; throughput: of all operators; busy: share
 * of the machine's CPUs. */
struct level_change {
	double seconds, throughput, busy;
	uint64_t level;
};

/* One departure, for --record. */
struct departure {
	uint64_t due_ns, entry_ns, out_ns;
	uint32_t operator, ideal_ns;
};

struct operator {
	struct engine *engine;
	const struct operator_spec *spec;
	const char *name;
	size_t row;
	struct queue *inputs; /* input_count, adjacent in engine->queues */
	size_t input_count;
	struct output *outputs;
	size_t output_count;
	uint64_t burn_steps, key, cost_ns, window_ns;
	bool ingress;
	struct join *join;
	struct activity_row *activity;
	struct egress_row *egress; /* NULL: it has outputs */
	struct live_row *live;
	struct departure *record;
	size_t recorded;
	pthread_t thread;
	uint64_t published_ns; /* when cpu_ns was last written */
	bool running;          /* pool: a worker has it; guarded by the pool's lock */
	alignas(LINE_BYTES) _Atomic uint32_t sleeping; /* futex: 1 while its thread waits for input */
};

struct options {
	const char *workload, *shm, *results, *record;
	double utilisation, cpus, base_cost_us, duration_s, delay_s, warmup_s, drain_s;
	double elastic_s; /* period of the elastic pool; 0: all workers work */
	uint64_t seed, capacity, workers, batch;
	enum batch { BATCH_ALL, BATCH_HALF, BATCH_COUNT } batch_kind;
	enum pool_policy { POOL_QS, POOL_FCFS } pool_policy;
	enum burn burn;
	double step_ns;
	bool generator_fair;
};

struct engine {
	struct options options;
	struct workload workload;
	struct shared shared;
	struct operator *operators;
	struct queue *queues; /* one an edge, in the order of workload.edges */
	struct output *outputs;
	double scale;         /* tuples/s of a source of rate 1 */
	uint64_t epoch_ns, record_from_ns;
	_Atomic bool stop;    /* leave everything as it is and return */
	_Atomic bool generated; /* the sources are done */
	_Atomic bool live;      /* somebody reads the live rows */
	struct live_row *live_rows;
	struct level_change *levels; /* of the elastic pool, a row a period */
	size_t level_count;
	void (*notify)(struct operator *); /* called after a push to the operator */
};

void engine_build(struct engine *engine);
void engine_free(struct engine *engine);

/* Processes the oldest tuple of the operator: of its inputs' heads the one due first. False if there
 * is none. May wait for room downstream unless the caller has made sure of it (pool). */
bool operator_step(struct operator *op);

bool operator_has_input(struct operator *op);
uint64_t operator_queue(struct operator *op);

/* Due time of the oldest waiting tuple, 0 if none waits. */
uint64_t operator_head_due(struct operator *op);

/* True if each queue downstream has room for a tuple. */
bool operator_has_room(const struct operator *op);

/* Enters a new activity state and books the time in the old one. */
void activity_change(struct activity_row *activity, enum activity_state state);

/* Puts a tuple into a queue, waiting for room if it is bounded and `by` (NULL for a source, which
 * never waits) may wait, and notifies the consumer. */
void engine_push(struct engine *engine, struct operator *by, struct queue *queue,
		 struct operator *target, const struct tuple *tuple);

/* One thread an operator. */
void threads_start(struct engine *engine);
void threads_join(struct engine *engine); /* after engine->stop */

/* A pool of workers. */
void pool_start(struct engine *engine);
void pool_join(struct engine *engine);
void pool_tick(struct engine *engine, uint64_t now); /* now and then: the elastic level */

/* The sources: one thread that puts tuples into the ingresses' queues when they are due. */
void sources_start(struct engine *engine, size_t thread_row);
void sources_join(void);

/* Names the calling thread and enters it into the row. */
void thread_enter(struct thread_row *row, const char *name, const char *role);

#endif
