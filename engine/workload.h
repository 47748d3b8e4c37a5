/* What ctl/workloads/resolved.py makes of a workload file. */
#ifndef LABSPE_WORKLOAD_H
#define LABSPE_WORKLOAD_H

#include <stddef.h>

#include "layout.h"

enum arrivals { POISSON, CONSTANT, ONOFF, TRACE };

struct query_spec {
	char name[NAME_BYTES], class[NAME_BYTES];
};

struct operator_spec {
	char name[NAME_BYTES];
	size_t query;
	double cost, selectivity, block_probability, block_max_ms, window_ms;
	int inputs, outputs; /* edges and sources */
};

/* source == SIZE_MAX: the outside world, at `rate` (relative). */
struct edge_spec {
	size_t source, target;
	double share, rate;
	enum arrivals arrivals;
	double on_ms, off_ms, shape;
	double *trace; /* places in a cycle of length 1, not decreasing */
	size_t trace_length;
};

struct workload {
	char name[NAME_BYTES];
	double base_cost_us;
	struct query_spec *queries;
	struct operator_spec *operators; /* of a query one after the other */
	struct edge_spec *edges;         /* sorted by target */
	size_t query_count, operator_count, edge_count;
	size_t *order;                   /* operators, upstream first */
};

/* Ends the program with a message when the file is not right. */
struct workload workload_read(const char *path);

/* Input tuples/s of each operator when each source emits scale * rate; returns the base costs a
 * second that all need. rates: operator_count, or NULL. */
double workload_demand(const struct workload *workload, double scale, double *rates);

/* Tuples/s of a source of rate 1 at which the operators need `cpus` CPUs. */
double workload_scale(const struct workload *workload, double cpus, double base_cost_s);

#endif
