/* What a run gave, as JSON. */
#ifndef LABSPE_RESULTS_H
#define LABSPE_RESULTS_H

#include "engine.h"

/* Sampled by the main thread while the sources run, from the end of the warm-up on. */
struct samples {
	uint64_t count;
	double queue_sum;      /* tuples waiting in all operators */
	double queue_variance; /* over the operators */
};

struct measured {
	struct samples samples;
	double seconds, cpu_s;         /* from the end of the warm-up to the end of the sources */
	uint64_t context_switches;
	uint64_t ingested, departed;   /* in the same time */
	uint64_t left;                 /* tuples in queues at the end */
	double drain_s;
};

/* Writes the results to `path`, or to standard output if it is "-". */
void results_write(const struct engine *engine, const struct measured *measured, const char *path);

/* Writes every departure to `path` as rows of struct departure. */
void results_record(const struct engine *engine, const char *path);

#endif
