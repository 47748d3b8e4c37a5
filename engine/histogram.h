/* Logarithmic histograms with linear sub-buckets, as HDR Histogram has them: relative error 3%. */
#ifndef LABSPE_HISTOGRAM_H
#define LABSPE_HISTOGRAM_H

#include "layout.h"

static inline unsigned histogram_bucket(uint64_t value)
{
	enum { SUB = 1 << HISTOGRAM_SUB_BITS };
	unsigned shift, bucket;

	if (value < SUB)
		return (unsigned)value;
	shift = 63 - (unsigned)__builtin_clzll(value) - HISTOGRAM_SUB_BITS;
	bucket = (shift + 1) * SUB + (unsigned)(value >> shift) - SUB;
	return bucket < HISTOGRAM_BUCKETS ? bucket : HISTOGRAM_BUCKETS - 1;
}

/* Smallest value of a bucket. */
static inline uint64_t histogram_low(unsigned bucket)
{
	enum { SUB = 1 << HISTOGRAM_SUB_BITS };

	if (bucket < SUB)
		return bucket;
	return (uint64_t)(SUB + bucket % SUB) << (bucket / SUB - 1);
}

/* The value below which `quantile` of the counts lie: the middle of the bucket where they end. */
static inline double histogram_quantile(const uint64_t counts[HISTOGRAM_BUCKETS], double quantile)
{
	uint64_t total = 0, below = 0;

	for (unsigned b = 0; b < HISTOGRAM_BUCKETS; b++)
		total += counts[b];
	for (unsigned b = 0; b < HISTOGRAM_BUCKETS; b++) {
		below += counts[b];
		if (counts[b] && (double)below >= quantile * (double)total)
			return ((double)histogram_low(b) + (double)histogram_low(b + 1)) / 2;
	}
	return 0;
}

#endif
