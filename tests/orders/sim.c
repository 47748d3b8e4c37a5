/* The order in which the simulator takes operators that wait. */
#include "../../sim/native/table.c"
#include "../../sim/native/order.c"

void sim_order(int64_t n, const double *fixed, const double *per_tuple, const int64_t *group_of,
	       int64_t groups, const double *per_second, const int64_t *rank, const int64_t *turns,
	       const double *origin, const double *size, double now, int64_t *order)
{
	struct order *o = order_new(n);

	order_set(o, fixed, per_tuple, group_of, groups, per_second, rank, turns, false);
	for (int64_t i = 0; i < n; i++)
		order_insert(o, i, origin[i], size[i]);
	for (int64_t i = 0; i < n; i++) {
		order[i] = order_next(o, now);
		order_remove(o, order[i]);
	}
	order_free(o);
}
