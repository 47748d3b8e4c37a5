#include "join.h"

#include <stdlib.h>

#include "util.h"

/* A ring of tuples, oldest first; room is a power of two. */
struct side {
	struct tuple *tuples;
	size_t first, count, room;
};

struct join {
	uint64_t window_ns, due_ns;
	struct side sides[2];
};

struct join *join_new(uint64_t window_ns)
{
	struct join *join = allocate(1, sizeof *join);

	join->window_ns = window_ns;
	return join;
}

void join_free(struct join *join)
{
	if (!join)
		return;
	free(join->sides[0].tuples);
	free(join->sides[1].tuples);
	free(join);
}

static struct tuple *at(const struct side *side, size_t i)
{
	return &side->tuples[(side->first + i) & (side->room - 1)];
}

void join_insert(struct join *join, size_t side, const struct tuple *tuple)
{
	struct side *own = &join->sides[side], *other = &join->sides[!side];

	if (own->count == own->room) {
		struct side larger = {.count = own->count, .room = own->room ? 2 * own->room : 64};

		larger.tuples = allocate(larger.room, sizeof *larger.tuples);
		for (size_t i = 0; i < own->count; i++)
			larger.tuples[i] = *at(own, i);
		free(own->tuples);
		*own = larger;
	}
	own->count++;
	*at(own, own->count - 1) = *tuple;
	while (other->count && at(other, 0)->due_ns + join->window_ns < tuple->due_ns) {
		other->first++;
		other->count--;
	}
	join->due_ns = tuple->due_ns;
}

const struct tuple *join_partner(const struct join *join, size_t side, size_t i)
{
	const struct side *other = &join->sides[!side];

	/* What is behind the window (the other input is ahead) is behind for the rest as well. */
	if (i >= other->count || at(other, i)->due_ns > join->due_ns + join->window_ns)
		return NULL;
	return at(other, i);
}
