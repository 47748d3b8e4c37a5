// SPDX-License-Identifier: GPL-2.0-only
/* Memory for what there is one of an operator. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "sim.h"

void *table(int64_t n, uint64_t size)
{
	// Large ones go over many pages at random: few large pages are found sooner.
	uint64_t bytes = (uint64_t)(n + 1) * size, unit = bytes > 1 << 21 ? 1 << 21 : 64;
	bytes = (bytes + unit - 1) / unit * unit;
	void *memory = aligned_alloc(unit, bytes);
	if (!memory)
		abort();
	if (unit > 64)
		madvise(memory, bytes, MADV_HUGEPAGE); // where there are none it works as well
	return memset(memory, 0, bytes);
}
