/* The order in which the BPF program takes threads, by its own arithmetic, compiled natively. */
#include <linux/types.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

typedef __u64 u64;
typedef __s64 s64;
typedef __u32 u32;
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))

#include "../../bpf/sched_ctl.h"
#include "../../bpf/urgency.h"

/* The kernel keeps a queue by key; of an exact one all threads are looked at, in that order. */
static int64_t head(int64_t n, const struct slot *slots, const bool *taken, u32 queue, bool exact,
		    const u64 *origin_ns, const u64 *tuples, u64 now_ns, u64 *urgency)
{
	u64 best_key = 0, u;
	int64_t best = -1;

	for (int64_t i = 0; i < n; i++) {
		u64 key = key_at(origin_ns[i], slots[i].lead_us, i + 1);

		if (taken[i] || slots[i].queue != queue)
			continue;
		u = exact ? form_urgency(&slots[i], origin_ns[i], tuples[i], now_ns) : 0;
		if (best < 0 || (exact && u > *urgency) ||
		    ((!exact || u == *urgency) && before(key, best_key))) {
			best = i;
			best_key = key;
			*urgency = u;
		}
	}
	return best;
}

void bpf_order(int64_t n, const u64 *hints, int64_t queues, const u64 *queue_hints,
	       const u64 *origin_ns, const u64 *tuples, u64 now_ns, int64_t *order)
{
	struct slot *slots = calloc(n, sizeof *slots);
	bool *taken = calloc(n, sizeof *taken);

	for (int64_t i = 0; i < n; i++)
		slots[i] = (struct slot){
			.lead_us = hints[i], .queue = hints[n + i], .base = hints[2 * n + i],
			.slope = hints[3 * n + i], .per_tuple = hints[4 * n + i],
		};
	for (int64_t place = 0; place < n; place++) {
		u64 most = 0;

		order[place] = -1;
		for (int64_t i = 0; i < queues; i++) {
			struct queue q = { .base = queue_hints[i], .slope = queue_hints[queues + i] };
			bool exact = queue_hints[2 * queues + i];
			u64 u = 0;
			int64_t at = head(n, slots, taken, i, exact, origin_ns, tuples, now_ns, &u);

			if (at < 0)
				continue;
			if (!exact)
				u = head_urgency(&q, key_at(origin_ns[at], slots[at].lead_us, at + 1),
						 now_ns);
			if (order[place] < 0 || u > most) {
				order[place] = at;
				most = u;
			}
		}
		taken[order[place]] = true;
	}
	free(slots);
	free(taken);
}
