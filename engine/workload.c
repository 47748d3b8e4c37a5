/* Reads a resolved workload and works out which rates give which load. */
#include "workload.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util.h"

enum { MAX_OPERATORS = 100000, MAX_EDGES = 2000000, MAX_TIMES = 1 << 24 };
#define WORD "63" /* NAME_BYTES - 1 */
static const char *const MAGIC = "labspe-workload-1";

struct reader {
	const char *path;
	FILE *file;
};

static _Noreturn void bad(const struct reader *r, const char *what)
{
	die("%s: no resolved workload (%s); 'sched-ctl lab FILE' runs workload files", r->path, what);
}

static void word(const struct reader *r, char to[NAME_BYTES], const char *what)
{
	if (fscanf(r->file, " %" WORD "s", to) != 1)
		bad(r, what);
}

static double number(const struct reader *r, double low, double high, const char *what)
{
	double value;

	if (fscanf(r->file, " %lf", &value) != 1 || !(value >= low && value <= high))
		bad(r, what);
	return value;
}

static size_t count(const struct reader *r, double low, size_t high, const char *what)
{
	return (size_t)number(r, low, (double)high, what);
}

static void read_operator(const struct reader *r, const struct workload *w, struct operator_spec *op)
{
	word(r, op->name, "operator");
	op->query = count(r, 0, w->query_count - 1, "query of an operator");
	if (op > w->operators && op->query < op[-1].query)
		bad(r, "operators in the order of their queries");
	op->cost = number(r, 0, 1e6, "cost");
	op->selectivity = number(r, 0, 1000, "selectivity");
	op->block_probability = number(r, 0, 1, "block_probability");
	op->block_max_ms = number(r, 0, 60000, "block_max_ms");
	op->window_ms = number(r, 0, 3600000, "window_ms");
}

static void read_edge(const struct reader *r, struct workload *w, struct edge_spec *edge)
{
	double source = number(r, -1, (double)(w->operator_count - 1), "source of an edge");

	edge->source = source < 0 ? SIZE_MAX : (size_t)source;
	edge->target = count(r, 0, w->operator_count - 1, "target of an edge");
	if (edge > w->edges && edge->target < edge[-1].target)
		bad(r, "edges in the order of their targets");
	edge->share = number(r, 0, 1, "share");
	w->operators[edge->target].inputs++;
	if (edge->source != SIZE_MAX) {
		w->operators[edge->source].outputs++;
		return;
	}
	edge->rate = number(r, 0, 1e9, "rate");
	edge->arrivals = (enum arrivals)count(r, POISSON, TRACE, "arrivals");
	edge->on_ms = number(r, 0, 3600000, "on_ms");
	edge->off_ms = number(r, 0, 3600000, "off_ms");
	edge->shape = number(r, 0, 100, "shape");
	edge->trace_length = count(r, edge->arrivals == TRACE, MAX_TIMES, "length of a trace");
	edge->trace = allocate(edge->trace_length, sizeof *edge->trace);
	for (size_t i = 0; i < edge->trace_length; i++)
		edge->trace[i] = number(r, i ? edge->trace[i - 1] : 0, 1, "place in a trace");
}

/* Upstream first, each once: rates are worked out in this order. */
static void read_order(const struct reader *r, struct workload *w)
{
	char *seen = allocate(w->operator_count, 1);

	w->order = allocate(w->operator_count, sizeof *w->order);
	for (size_t i = 0; i < w->operator_count; i++) {
		w->order[i] = count(r, 0, w->operator_count - 1, "order");
		if (seen[w->order[i]]++)
			bad(r, "each operator once in the order");
	}
	free(seen);
}

struct workload workload_read(const char *path)
{
	struct reader r = {.path = path, .file = fopen(path, "re")};
	struct workload w = {0};
	char text[NAME_BYTES];

	if (!r.file)
		die("cannot read workload %s: %s", path, strerror(errno));
	word(&r, text, "first word");
	if (strcmp(text, MAGIC))
		bad(&r, "first word");
	word(&r, w.name, "name");
	w.base_cost_us = number(&r, 1e-9, 1e6, "base cost");
	w.query_count = count(&r, 1, MAX_OPERATORS, "queries");
	w.operator_count = count(&r, 1, MAX_OPERATORS, "operators");
	w.edge_count = count(&r, 1, MAX_EDGES, "edges");
	w.queries = allocate(w.query_count, sizeof *w.queries);
	w.operators = allocate(w.operator_count, sizeof *w.operators);
	w.edges = allocate(w.edge_count, sizeof *w.edges);
	for (size_t i = 0; i < w.query_count; i++) {
		word(&r, w.queries[i].name, "query");
		word(&r, text, "class"); /* behind a "=", for it may be empty */
		strcpy(w.queries[i].class, text + 1);
	}
	for (size_t i = 0; i < w.operator_count; i++)
		read_operator(&r, &w, &w.operators[i]);
	for (size_t i = 0; i < w.edge_count; i++)
		read_edge(&r, &w, &w.edges[i]);
	read_order(&r, &w);
	fclose(r.file);
	if (!(workload_demand(&w, 1, NULL) > 0))
		bad(&r, "demand");
	return w;
}

double workload_demand(const struct workload *w, double scale, double *rates)
{
	double *rate = allocate(w->operator_count, sizeof *rate); /* sum of the inputs */
	double *product = allocate(w->operator_count, sizeof *product), demand = 0;
	size_t *first = allocate(w->operator_count + 1, sizeof *first);
	size_t *by_source = allocate(w->edge_count, sizeof *by_source);

	/* Edges by their source, so that each is looked at once, when its producer is done. */
	for (size_t i = 0; i < w->edge_count; i++)
		if (w->edges[i].source != SIZE_MAX)
			first[w->edges[i].source + 1]++;
	for (size_t i = 0; i < w->operator_count; i++) {
		first[i + 1] += first[i];
		product[i] = 1;
	}
	for (size_t i = 0; i < w->edge_count; i++) {
		const struct edge_spec *edge = &w->edges[i];

		if (edge->source != SIZE_MAX) {
			by_source[first[edge->source]++] = i;
		} else {
			rate[edge->target] += scale * edge->rate;
			product[edge->target] *= scale * edge->rate;
		}
	}
	for (size_t n = 0; n < w->operator_count; n++) {
		size_t i = w->order[n];
		const struct operator_spec *op = &w->operators[i];
		double out = rate[i];

		if (op->window_ms > 0) /* pairs inside the window: Sharaf et al. 2006, section 5 */
			out = 2 * op->window_ms * 1e-3 * product[i];
		demand += rate[i] * op->cost;
		for (size_t e = i ? first[i - 1] : 0; e < first[i]; e++) {
			const struct edge_spec *edge = &w->edges[by_source[e]];

			rate[edge->target] += out * op->selectivity * edge->share;
			product[edge->target] *= out * op->selectivity * edge->share;
		}
	}
	if (rates)
		memcpy(rates, rate, w->operator_count * sizeof *rate);
	free(rate);
	free(product);
	free(first);
	free(by_source);
	return demand;
}

double workload_scale(const struct workload *w, double cpus, double base_cost_s)
{
	double demand = cpus / base_cost_s, low = 0, high = 1;

	/* Joins make the demand grow faster than the rate, so it is searched, not divided. */
	while (workload_demand(w, high, NULL) < demand)
		high *= 2;
	for (int i = 0; i < 60; i++) {
		double middle = (low + high) / 2;

		*(workload_demand(w, middle, NULL) < demand ? &low : &high) = middle;
	}
	return high;
}
