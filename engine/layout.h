/* The shared-memory file of a running engine: what others can see of it, and the one place where
 * they can write.
 *
 * This header is the only source of the layout. The engine puts a description of it, made from the
 * same lists, into every file (and prints it with --layout), and readers take field names, offsets
 * and types from there; so nothing is written twice.
 *
 * Only the first five fields of the header have to stay where they are: through them a reader finds
 * the description.
 *
 * The file is a header and sections of rows, all rows multiples of a cache line, so that a row has
 * one writer and is not fought over. All numbers are 8 bytes, aligned, little-endian, written
 * atomically; counters only grow. Edges are sorted by their target operator, and every operator has
 * at least one input edge (a source is an edge from outside), so a reader can reduce over edges.
 *
 * Urgency forms: the engine in pool mode reads two banks of four columns of doubles (rank, static,
 * per_second, per_tuple; one row an operator). A writer fills the bank that is not in force,
 * (epoch + 1) & 1, then stores epoch + 1 in `urgency_epoch`; the bank is in force until
 * `urgency_until_ns`. Otherwise, and at epoch 0, the engine's own policy is.
 */
#ifndef LABSPE_LAYOUT_H
#define LABSPE_LAYOUT_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum {
	LAYOUT_VERSION = 2,
	NAME_BYTES = 64, /* with the closing 0 */
	LINE_BYTES = 64,
	HISTOGRAM_SUB_BITS = 5,    /* 32 buckets for each power of two: 3% wide */
	HISTOGRAM_BUCKETS = 1312,  /* up to 2^45: ten hours of nanoseconds */
	URGENCY_BANKS = 2,
	URGENCY_COLUMNS = 4,
};
#define LAYOUT_MAGIC UINT64_C(0x3145505342414c) /* "LABSPE1" */
#define OUTSIDE UINT64_MAX                      /* source of an edge that a source feeds */
#define SLOWDOWN_UNIT 1024.0                    /* slowdowns are counted in 1/1024 */

typedef _Atomic uint64_t shared_u64;
typedef _Atomic double shared_f64;
typedef char shared_text[NAME_BYTES];
typedef _Atomic uint64_t shared_histogram[HISTOGRAM_BUCKETS];

enum engine_state { STARTING, RUNNING, DRAINING, DONE };
enum activity_state { IDLE, BUSY, BLOCKED, SLEEPING };

#define HEADER_FIELDS(F) \
	F(u64, magic, "", "LAYOUT_MAGIC; stored last, when the file is complete") \
	F(u64, version, "", "LAYOUT_VERSION") \
	F(u64, bytes, "bytes", "size of the file") \
	F(u64, layout_offset, "bytes", "where the description of the layout is (JSON)") \
	F(u64, layout_bytes, "bytes", "and how long") \
	F(u64, pid, "", "process of the engine") \
	F(u64, start_time, "ticks", "its start time, field 22 of /proc/PID/stat") \
	F(u64, generation, "", "grows when queries, operators, edges or threads change") \
	F(u64, state, "", "0 starting, 1 running, 2 draining, 3 done") \
	F(u64, heartbeat_ns, "ns", "CLOCK_MONOTONIC, renewed every 20 ms") \
	F(u64, epoch_ns, "ns", "CLOCK_MONOTONIC when the first tuple may be due") \
	F(u64, workers, "threads", "of the pool; 0: one thread an operator") \
	F(u64, level, "threads", "of the workers those that work now; the others are parked") \
	F(u64, capacity, "tuples", "of a queue between operators; 0: unbounded") \
	F(f64, base_cost_ns, "ns", "CPU time of a cost of 1") \
	F(u64, queries_offset, "bytes", "section of query rows") \
	F(u64, queries_count, "rows", "") \
	F(u64, operators_offset, "bytes", "section of operator rows") \
	F(u64, operators_count, "rows", "") \
	F(u64, activity_offset, "bytes", "section of activity rows, one an operator") \
	F(u64, edges_offset, "bytes", "section of edge rows, sorted by target") \
	F(u64, edges_count, "rows", "") \
	F(u64, produced_offset, "bytes", "section of produced rows, one an edge") \
	F(u64, consumed_offset, "bytes", "section of consumed rows, one an edge") \
	F(u64, egresses_offset, "bytes", "section of egress rows") \
	F(u64, egresses_count, "rows", "") \
	F(u64, threads_offset, "bytes", "section of thread rows: threads of no operator") \
	F(u64, threads_count, "rows", "") \
	F(u64, urgency_offset, "bytes", "two banks of four columns, see above") \
	F(u64, urgency_epoch, "", "bank in force: epoch & 1; 0: the engine's own policy") \
	F(u64, urgency_until_ns, "ns", "CLOCK_MONOTONIC when the bank loses its force, unless renewed") \
	F(text, live_socket, "", "abstract UNIX socket that takes memory for live rows; or empty")

#define QUERY_FIELDS(F) \
	F(text, name, "", "") \
	F(text, class, "", "priority class, or empty")

#define OPERATOR_FIELDS(F) \
	F(text, name, "", "") \
	F(u64, query, "row", "") \
	F(u64, tid, "", "its thread; 0 in pool mode") \
	F(u64, start_time, "ticks", "of its thread") \
	F(f64, cost_ns, "ns", "CPU time an input tuple, as configured") \
	F(f64, selectivity, "1", "as configured") \
	F(u64, ingress, "", "1 if a source feeds it")

#define ACTIVITY_FIELDS(F) \
	F(u64, in, "tuples", "processed") \
	F(u64, out, "tuples", "emitted, each once however many edges it takes") \
	F(u64, cpu_ns, "ns", "CPU time used, up to 1 ms old; in pool mode the time of its turns") \
	F(u64, idle_ns, "ns", "without input") \
	F(u64, busy_ns, "ns", "with input, waiting for CPU included") \
	F(u64, blocked_ns, "ns", "waiting for room downstream") \
	F(u64, slept_ns, "ns", "blocked by the operator's own doing") \
	F(u64, state, "", "now: 0 idle, 1 busy, 2 blocked, 3 sleeping") \
	F(u64, since_ns, "ns", "CLOCK_MONOTONIC when that began; not yet in the counters above") \
	F(u64, turns, "", "times it was given to a worker (pool mode)")

#define EDGE_FIELDS(F) \
	F(u64, source, "row", "operator, or 2^64-1 for a source") \
	F(u64, target, "row", "operator") \
	F(f64, share, "1", "part of the producer's output")

#define PRODUCED_FIELDS(F) \
	F(u64, tuples, "tuples", "put into the edge's queue")

#define CONSUMED_FIELDS(F) \
	F(u64, tuples, "tuples", "processed; produced - consumed wait or are in work") \
	F(u64, head_due_ns, "ns", "due time of the oldest of these; without meaning if there is none")

#define EGRESS_FIELDS(F) \
	F(u64, operator, "row", "") \
	F(u64, departures, "tuples", "that left here, of those due after the warm-up") \
	F(f64, latency_ns, "ns", "sum over them of departure - due time: end-to-end latency") \
	F(f64, processing_ns, "ns", "sum of departure - entry into the ingress") \
	F(f64, slowdown, "1", "sum of end-to-end latency / ideal processing time") \
	F(f64, slowdown_squared, "1", "sum of its squares") \
	F(u64, latency_max_ns, "ns", "") \
	F(u64, processing_max_ns, "ns", "") \
	F(f64, slowdown_max, "1", "") \
	F(histogram, latency_histogram, "ns", "") \
	F(histogram, processing_histogram, "ns", "") \
	F(histogram, slowdown_histogram, "1/1024", "")

#define THREAD_FIELDS(F) \
	F(text, name, "", "") \
	F(text, role, "", "source, worker, main") \
	F(u64, tid, "", "") \
	F(u64, start_time, "ticks", "")

/* Not in the file but in memory that is handed over, see live.h: row 0, then one an operator. */
#define LIVE_FIELDS(F) \
	F(u64, head_ns, "ns", "due time of the oldest tuple, 0: none; of row 0: sign of life") \
	F(u64, queue_tuples, "tuples", "waiting or in work")

#define MEMBER(type, name, unit, meaning) shared_##type name;
struct header { alignas(LINE_BYTES) HEADER_FIELDS(MEMBER) };
struct query_row { alignas(LINE_BYTES) QUERY_FIELDS(MEMBER) };
struct operator_row { alignas(LINE_BYTES) OPERATOR_FIELDS(MEMBER) };
struct activity_row { alignas(LINE_BYTES) ACTIVITY_FIELDS(MEMBER) };
struct edge_row { alignas(LINE_BYTES) EDGE_FIELDS(MEMBER) };
struct produced_row { alignas(LINE_BYTES) PRODUCED_FIELDS(MEMBER) };
struct consumed_row { alignas(LINE_BYTES) CONSUMED_FIELDS(MEMBER) };
struct egress_row { alignas(LINE_BYTES) EGRESS_FIELDS(MEMBER) };
struct thread_row { alignas(LINE_BYTES) THREAD_FIELDS(MEMBER) };
struct live_row { alignas(LINE_BYTES) LIVE_FIELDS(MEMBER) };
#undef MEMBER

struct live_offer {
	uint64_t rows, row_bytes;
};

/* Relaxed access: a field has one writer, and its readers want a recent value, no order. */
#define get(field) atomic_load_explicit(&(field), memory_order_relaxed)
#define set(field, value) atomic_store_explicit(&(field), value, memory_order_relaxed)
#define add(field, value) set(field, get(field) + (value))

/* The mapped file. */
struct shared {
	struct header *header;
	struct query_row *queries;
	struct operator_row *operators;
	struct activity_row *activity;
	struct edge_row *edges;
	struct produced_row *produced;
	struct consumed_row *consumed;
	struct egress_row *egresses;
	struct thread_row *threads;
	shared_f64 *urgency;
};

struct shared_size {
	uint64_t queries, operators, edges, egresses, threads;
};

/* Creates the file at `path` (or private memory if it is NULL) for that many rows. Ends the program
 * with a message if it cannot. */
struct shared shared_create(const char *path, struct shared_size size);

/* Where the files are, SHM_PREFIX and the pid, unless --shm says otherwise. */
#define SHM_FOLDER "/dev/shm"
#define SHM_PREFIX "labspe."
/* Remove what engines of this user that were killed have left there; each is some megabytes. */
void shared_remove_left_over(void);

/* The description of the layout as JSON; the caller frees it. */
char *layout_json(void);

#endif
