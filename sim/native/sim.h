// SPDX-License-Identifier: GPL-2.0-only
/*
 * A discrete-event simulation of one node: operators with queues, and CPUs that serve them.
 *
 * Who runs is decided in one of two ways, which share everything in core.c:
 *   user.c     a user-level scheduler: workers that never are preempted; at each scheduling point
 *              a free worker takes the most urgent operator (order.c)
 *   threads.c  an operating system: one thread an operator, time slices, wake-ups; the next thread
 *              by weighted fair sharing (EEVDF, fair.c) or by urgency (as the BPF scheduler does)
 *
 * Time is in seconds. A tuple stays in its operator's queue until it is processed, so a queue that
 * is being served is not empty. The memory that `struct sim_config` points to belongs to the
 * caller, who keeps it until sim_free().
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAIR_UNIT 1024.0 // weight of nice 0

enum sim_mode { SIM_OPERATOR, SIM_QUERY, SIM_FAIR, SIM_URGENCY };
enum sim_batch { SIM_ALL = 0, SIM_HALF = -1 };  // else: at most so many tuples a turn
enum sim_age {
	SIM_AGE_HEAD,	   // when the oldest waiting tuple came into the system
	SIM_AGE_INHERITED, // origin inherited from the thread that woke this one; see threads.c
	SIM_AGE_RUNNABLE,  // when the thread became runnable
};
enum sim_candidates {  // what a scheduling decision has to look at, each at the cost candidate_s
	SIM_COUNT_NONE,
	SIM_COUNT_OPERATORS, // every operator with waiting tuples
	SIM_COUNT_GROUPS,    // every cluster with waiting tuples
	SIM_COUNT_FAGIN,     // the clusters that Fagin's algorithm visits (AQSIOS, 6.2.2)
};

// The columns of `results`, one row an operator; the first eight are one cache line, for they change
// with each tuple. From SIM_DEPARTED on: of the tuples that leave the node from it.
enum sim_result {
	SIM_IN,		    // tuples that came into the queue
	SIM_DONE,	    // tuples that were processed
	SIM_OUT,	    // tuples that were emitted, each once
	SIM_SENT,	    // copies of what was emitted that took an edge
	SIM_CPU,	    // CPU time, overheads included
	SIM_OCCUPIED,	    // time in which the queue was not empty, since sim_new()
	SIM_QUEUE_AREA,	    // integral of the queue size over time
	SIM_QUEUE_MAX,
	SIM_DEPARTED,	    // tuples that left and had come after warm_s
	SIM_RESPONSE,	    // sum of their response times
	SIM_RESPONSE_MAX,
	SIM_WORKED,	    // those that took CPU time: others have no slowdown
	SIM_SLOWDOWN,	    // sum of their slowdowns
	SIM_SLOWDOWN_MAX,
	SIM_SLOWDOWN_SQUARES,
	SIM_THROUGHPUT,	    // tuples that left in warm_s..end_s
	SIM_LEFT,	    // tuples that left the node, whenever they had come
	SIM_MET,	    // of those in SIM_DEPARTED, how many took no longer than target_s
	SIM_RESULTS,
};

enum sim_total {
	SIM_NOW,
	SIM_BUSY,	   // CPU time used by all CPUs
	SIM_DECISIONS,	   // scheduling points
	SIM_SWITCHES,	   // context switches
	SIM_MEMORY_AREA,   // integral of the sum of all queues over warm_s..end_s
	SIM_MEMORY_MAX,
	SIM_EVENTS,	   // tuples processed by operators
	SIM_RECORDED,	   // rows of `record`
	SIM_TOTALS,
};

enum { SIM_BUCKETS = 64 * 64 };	 // of a histogram: 64 buckets an octave from 2^-34

struct sim_config {
	int64_t operators, streams, arrivals, cpus, mode, batch, candidates, train, rotate, capacity,
		exponential, wake_preempt, age, rivals, record_max;
	uint64_t seed;
	double warm_s, end_s, decision_s, candidate_s, queue_s, hop_s, wake_s, switch_s, source_s,
		tick_s, starvation_s, rescue_s, least_s;
	const double *slice_s; // of each operator's thread
	const double *cost_s, *selectivity, *block_probability, *block_max_s, *window_s;
	const double *came_s; // NULL, or how old tuples from outside are when they come; may change
	const int64_t *out_start, *out_target, *out_port, *out_inline; // edges by producer
	const double *out_share, *out_begin;   // where the share begins on a split's circle
	const int64_t *query;		       // of each operator; only needed with least_s
	const double *target_s;		       // of each operator: latency that is to be kept
	const int64_t *kind;		       // of each operator: its row of `response_histogram`
	const int64_t *feed_start, *feed;      // operators that each stream feeds
	const int64_t *stream_start;	       // where each stream begins in `arrival_s`
	const double *arrival_s;	       // by stream, ascending
	const int32_t *order;		       // streams of all arrivals, by time
	const double *due_s;		       // those times
	const int64_t *forced_start;	       // NULL, or where each operator begins in `forced`
	const int8_t *forced;		       // outputs of its 1st, 2nd, ... input, instead of draws
	double *results;		       // (operators, SIM_RESULTS)
	double *totals;			       // (SIM_TOTALS)
	int64_t *response_histogram;	       // (kinds, SIM_BUCKETS)
	int64_t *slowdown_histogram;	       // (SIM_BUCKETS)
	double *record;			       // (record_max, 3): operator, arrival, departure
};

struct tuple {
	double arrival; // in the system; of a joined tuple, the later of the two
	double ideal;	// when it would be here if there were no queueing
	double work;	// mean cost of all that made it: T of the way it took, of both inputs of a join
	int64_t port;	// which input of a join
};

struct pending {
	struct tuple tuple;
	int64_t edge;
};

struct queue {
	struct tuple *ring;
	const double *times; // the stream, where nothing else comes; NULL: what came is in the ring
	uint64_t head, tail, mask;
};

struct edge {
	double share, begin;
	int32_t target;
	int16_t port;
	bool in_line; // at query level a tuple goes on over it
};

struct window { // one side of a join: the tuples that came in, oldest first
	struct tuple *tuples;
	uint64_t first, n, space;
};

enum thread_state { SLEEPING, READY, RUNNING, BLOCKED, WAITING };

// What each tuple needs comes first: two cache lines of 64 bytes, and one for a short queue.
struct operator {
	struct queue queue;
	double cost, selectivity;
	uint64_t draws; // random state
	double changed, occupied; // when the queue last changed, and since when it is not empty
	int32_t first, edges; // its edges in sim.edge
	struct window *window; // two, or NULL
	uint64_t costs; // random state
	bool busy;	// a worker is at it (user.c)
	bool blocks;	// now and then
	bool outside;	// last woken by an arrival
	bool delayed;	// fair.c: asleep, but still in the list until its lag is paid
	enum thread_state state;
	double window_s;
	struct tuple near[2]; // the queue's memory until it gets longer
	// threads.c
	double left;		    // of the tuple at the head: CPU time to go
	double drawn;		    // its cost without overheads
	double origin, ready_since; // for its age
	double woken, ran;	    // when it woke up; how long it ran since its age was renewed
	double spent, burst;	    // CPU time since it woke up, and from wake-up to sleep, an average
	double wake_at;		    // while WAITING
	struct pending *pending; // outputs that could not go yet
	int64_t pending_n, pending_space, pending_next;
	// fair.c
	double vruntime, deadline, lag, weight;
	double protected_until; // virtual time
	int64_t ready_at;	// index in the list of ready threads
} __attribute__((aligned(64)));

struct order; // of the operators that wait for a CPU, see order.c

struct worker {
	int64_t op; // -1: idle
	int64_t left;
	double end, drawn;
	double free_at; // when it has woken up
	struct pending *pending; // outputs that go when the tuple is done
	int64_t pending_n, pending_space;
};

struct cpu {
	int64_t op;   // -1: idle
	int64_t last; // the thread that it ran last, for the cost of switches
	double accounted; // until when the operator's time is; later than now: it is kept waiting
	double check;	  // when its slice is over
	double had;	  // how much of its turn the operator has had, without interruptions
	double claim;	  // when it is compared with one that woke up; INFINITY: with none
	double debt_s;	  // CPU time of what was done for other threads, paid by the next tuple
	double free_at;	  // when a source that runs on the idle CPU has gone
	double next_rescue; // when to look again for who waits too long
	bool resched;
};

struct sim {
	struct sim_config c;
	struct operator *ops;
	struct edge *edge; // by producer
	struct order *order;
	double now;
	int64_t arrived; // arrivals so far
	struct tuple *out; // scratch: outputs of the tuples that are being processed
	int64_t out_n, out_space;
	double memory, memory_changed;
	struct worker *workers;
	struct cpu *cpus;
	int64_t *ready, ready_n;
	int64_t *timers, timers_n; // threads that wait for a time, soonest on top of the heap
	double fair_time;	   // last known average of the virtual times
	double source_until;	   // when the thread of the sources sleeps again
	double unlocked_at;	   // when the lock of the workers' queue is free
	int64_t *taken;		   // scratch of route()
};

// core.c
void feed(struct sim *s, int64_t op); // one more tuple of its stream, which came last
void push(struct sim *s, int64_t op, struct tuple t);
struct tuple front(const struct sim *s, int64_t op);
struct tuple pop(struct sim *s, int64_t op);
double draw_cost(struct sim *s, int64_t op);
double draw_block(struct sim *s, int64_t op); // 0, or how long it blocks
int64_t process(struct sim *s, int64_t op, struct tuple t, double cost); // outputs onto s->out
void leave(struct sim *s, int64_t op, struct tuple t, double at);
double next_arrival(const struct sim *s);
int64_t route(struct sim *s, int64_t op, int64_t *edges); // that one output takes; how many
void *grow(void *memory, int64_t *space, int64_t need, uint64_t size);
static inline uint64_t length(const struct operator *o) { return o->queue.tail - o->queue.head; }
static inline double *result(const struct sim *s, int64_t op)
{
	return s->c.results + op * SIM_RESULTS;
}
double uniform(uint64_t *state);

// table.c
void *table(int64_t n, uint64_t size); // zeroed, for free(); at the start of a cache line

// order.c
struct order *order_new(int64_t operators);
void order_free(struct order *o);
void order_set(struct order *o, const double *fixed, const double *per_tuple,
	       const int64_t *group_of, int64_t groups, const double *per_second,
	       const int64_t *rank_of_group, const int64_t *turns, bool rotate);
bool order_has(const struct order *o, int64_t op);
bool order_counts(const struct order *o, int64_t op); // does the queue size matter?
void order_insert(struct order *o, int64_t op, double origin, double queue_size);
void order_remove(struct order *o, int64_t op);
int64_t order_best(struct order *o, double now); // -1: none
int64_t order_peer(const struct order *o, int64_t op, double origin);
int64_t order_next(struct order *o, double now); // as order_best, and takes the turn
bool order_beats(const struct order *o, int64_t op, int64_t other, double origin, double size,
		 double now); // does `op`, which is in the order, come before `other`, which is not?
bool order_ranks_above(const struct order *o, int64_t op, int64_t other);
int64_t order_candidates(const struct order *o, enum sim_candidates what);

// fair.c
void fair_insert(struct sim *s, int64_t op);
void fair_remove(struct sim *s, int64_t op);
void fair_sleep(struct sim *s, int64_t op);
void fair_wake(struct sim *s, int64_t op);
void fair_begin(struct sim *s, int64_t op);  // it is put on a CPU
void fair_update(struct sim *s, int64_t op); // it ran
bool fair_protected(const struct sim *s, int64_t op);
// Next on a CPU, where `running` could go on (-1: nobody); -1: nobody at all.
int64_t fair_pick(struct sim *s, int64_t running, bool protect);

// user.c, threads.c
void user_start(struct sim *s);
bool user_run(struct sim *s, double until);
void threads_start(struct sim *s);
bool threads_run(struct sim *s, double until);
