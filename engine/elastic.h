/* How many workers of the pool are at work, by throughput: the rule of figure 8 of Schneider and Wu
 * (PLDI 2017). ctl/adapt/elastic.py tells what it leaves open and how that is decided; a test keeps
 * both in step. */
#ifndef LABSPE_ELASTIC_H
#define LABSPE_ELASTIC_H

#include <stdbool.h>
#include <stdint.h>

enum { LEVELS = 1024 };

struct elastic {
	uint64_t least, most, level;
	double busy_limit;       /* of the system's CPUs, 0..1: no more threads above */
	bool fine;               /* small steps now */
	double last[LEVELS + 1]; /* tuples/s that a level gave */
	bool trusted[LEVELS + 1];
};

/* Where it begins: at the least level. */
void elastic_begin(struct elastic *elastic, uint64_t least, uint64_t most);

/* A period at `level` is over. throughput: tuples/s of all operators; busy: share of the CPUs. */
void elastic_step(struct elastic *elastic, double throughput, double busy);

#endif
