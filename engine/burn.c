#include "burn.h"

#include "util.h"

/* The empty asm claims to read and write x: the compiler has to compute each value. */
static void multiply(uint64_t steps)
{
	uint64_t x = steps;

	while (steps--) {
		x = x * UINT64_C(6364136223846793005) + 1442695040888963407u;
		__asm__ volatile("" : "+r"(x));
	}
}

static void nop(uint64_t steps)
{
	while (steps--)
		__asm__ volatile("nop; nop; nop; nop; nop; nop; nop; nop; nop; nop; nop; nop;"
				 "nop; nop; nop; nop; nop; nop; nop; nop; nop; nop; nop; nop");
}

void burn(enum burn kind, uint64_t steps)
{
	(kind == BURN_NOP ? nop : multiply)(steps);
}

double burn_calibrate(enum burn kind)
{
	enum { STEPS = 200000, RUNS = 100 };
	double least = 0;

	for (int run = 0; run < RUNS; run++) {
		uint64_t start = thread_cpu_ns(), spent;

		burn(kind, STEPS);
		spent = thread_cpu_ns() - start;
		if (!run || (double)spent / STEPS < least)
			least = (double)spent / STEPS;
	}
	return least;
}
