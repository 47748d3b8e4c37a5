/* The order in which the lab engine's pool takes operators. columns: (4, n). */
#include <stdlib.h>

#include "../../engine/urgency.h"

void pool_order(int64_t n, const double *columns, const uint64_t *queue, const uint64_t *due,
		uint64_t now, int64_t *order)
{
	bool *taken = calloc(n, sizeof *taken);

	for (int64_t place = 0; place < n; place++) {
		struct urgency best = {0};

		order[place] = -1;
		for (int64_t i = 0; i < n; i++) {
			struct form form = {columns[i], columns[n + i], columns[2 * n + i],
					    columns[3 * n + i]};
			struct urgency u = urgency_at(&form, queue[i], due[i], now);
			int more = order[place] < 0 ? 1 : compare_urgency(&u, &best);

			if (!taken[i] &&
			    (more > 0 ||
			     (more == 0 && wins_tie(&u, due[i], &best, due[order[place]])))) {
				order[place] = i;
				best = u;
			}
		}
		taken[order[place]] = true;
	}
	free(taken);
}
