/* What a run gave, as JSON. */
#ifndef LABSPE_RESULTS_H
#define LABSPE_RESULTS_H

#include <stdio.h>

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

/* Opens a file (standard output for "-") before the run, so that a mistake costs no run. */
FILE *results_open(const char *path);

/* Writes the results, and closes the file. */
void results_write(const struct engine *engine, const struct measured *measured, FILE *out);

/* Writes every departure as rows of struct departure, and closes the file. */
void results_record(const struct engine *engine, FILE *out);

#endif
