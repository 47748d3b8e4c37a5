/* The state of a symmetric hash join over a time window: the recent tuples of both inputs.
 *
 * A pair is inside the window if its due times are at most the window apart, and is found by the
 * one of the two that is processed later. Inputs come in due order, for no workload with a join
 * downstream of a union or of another join is read. So a tuple can be dropped when the other input
 * is past its window: which pairs there are does not depend on the scheduler.
 */
#ifndef LABSPE_JOIN_H
#define LABSPE_JOIN_H

#include <stddef.h>
#include <stdint.h>

#include "queue.h"

struct join;

struct join *join_new(uint64_t window_ns);
void join_free(struct join *join);

/* Remembers a tuple of input `side` (0 or 1) and forgets those of the other too old for it. */
void join_insert(struct join *join, size_t side, const struct tuple *tuple);

/* The i-th tuple of the other input inside the window of the last one inserted, or NULL. */
const struct tuple *join_partner(const struct join *join, size_t side, size_t i);

#endif
