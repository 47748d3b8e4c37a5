/* The queue of an edge: one producer and one consumer at a time, no locks, no tuple lost.
 *
 * Tuples lie in segments; an unbounded queue grows by segments, a bounded one makes its producer
 * wait. How many were produced and consumed is counted in the shared-memory file, where both sides
 * and every observer read it. A tuple is consumed when it has been processed, so that an operator
 * with a tuple in work does not look idle.
 */
#ifndef LABSPE_QUEUE_H
#define LABSPE_QUEUE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "layout.h"
#include "util.h"

struct tuple {
	uint64_t due_ns;   /* when it was due at its source; of a join's output, the later of both */
	uint64_t entry_ns; /* when an ingress took it up */
	uint64_t id;       /* decides filters and splits: the same under every scheduler */
	uint32_t ideal_ns; /* CPU time on the path behind it: T of REFERENCE's slowdown */
	uint32_t alone_ns; /* latency on that path had it been alone; less than ideal after a join */
};

enum { SEGMENT_TUPLES = 127 };

struct segment {
	struct segment *next;
	struct tuple tuples[SEGMENT_TUPLES];
};

struct queue {
	/* producer's */
	struct segment *tail;
	unsigned tail_used;
	struct produced_row *produced;
	/* consumer's */
	alignas(LINE_BYTES) struct segment *head;
	unsigned head_used;
	struct consumed_row *consumed;
	/* both */
	alignas(LINE_BYTES) struct segment *_Atomic spare; /* saves most calls of malloc */
	_Atomic uint32_t producer_waits;                   /* futex: 1 while it waits for room */
};

static inline uint64_t queue_length(struct queue *q)
{
	/* Consumed first: the other way round the difference could be negative. */
	uint64_t consumed = atomic_load(&q->consumed->tuples);

	return atomic_load(&q->produced->tuples) - consumed;
}

static inline void queue_init(struct queue *q, struct produced_row *p, struct consumed_row *c)
{
	q->produced = p;
	q->consumed = c;
	q->head = q->tail = allocate(1, sizeof *q->tail);
}

static inline void queue_free(struct queue *q)
{
	while (q->head) {
		struct segment *next = q->head->next;

		free(q->head);
		q->head = next;
	}
	free(atomic_load(&q->spare));
}

/* Producer: appends a tuple. */
static inline void queue_push(struct queue *q, const struct tuple *tuple)
{
	uint64_t produced = get(q->produced->tuples) + 1;

	if (q->tail_used == SEGMENT_TUPLES) {
		struct segment *fresh = atomic_exchange(&q->spare, NULL);

		if (!fresh)
			fresh = allocate(1, sizeof *fresh);
		fresh->next = NULL;
		q->tail->next = fresh;
		q->tail = fresh;
		q->tail_used = 0;
	}
	q->tail->tuples[q->tail_used++] = *tuple;
	/* Sequentially consistent, as is the consumer's count: of two that race, one sees the other's,
	 * so a tuple that comes into an empty queue has its due time published by one of them, and (in
	 * the callers) a consumer that is about to sleep and its waker do not miss each other. */
	atomic_store(&q->produced->tuples, produced);
	if (atomic_load(&q->consumed->tuples) + 1 == produced)
		set(q->consumed->head_due_ns, tuple->due_ns);
}

/* Consumer: the oldest tuple, or NULL. It stays valid until queue_pop. */
static inline struct tuple *queue_peek(struct queue *q)
{
	if (get(q->consumed->tuples) == atomic_load(&q->produced->tuples))
		return NULL;
	if (q->head_used == SEGMENT_TUPLES) {
		struct segment *old = q->head;

		q->head = old->next;
		q->head_used = 0;
		free(atomic_exchange(&q->spare, old));
	}
	return &q->head->tuples[q->head_used];
}

/* Consumer: the tuple of queue_peek has been processed. */
static inline void queue_pop(struct queue *q)
{
	struct tuple *next;

	q->head_used++;
	atomic_store(&q->consumed->tuples, get(q->consumed->tuples) + 1);
	next = queue_peek(q);
	if (next)
		set(q->consumed->head_due_ns, next->due_ns);
}

#endif
