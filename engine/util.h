/* Small things that every part needs: errors, clocks, random numbers, futexes. */
#ifndef LABSPE_UTIL_H
#define LABSPE_UTIL_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Ends the program with exit code 1 after removing the shared-memory file. */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
void die_removes(const char *path);

/* calloc and realloc that end the program when memory is out. */
void *allocate(size_t count, size_t bytes);
/* The same for rows that are aligned to cache lines. */
void *allocate_lines(size_t count, size_t bytes);
void *grow(void *memory, size_t count, size_t bytes);

/* Start time of a thread of this process: field 22 of /proc/self/task/TID/stat. */
uint64_t start_time(uint64_t tid);

static inline uint64_t read_clock(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t now_ns(void) { return read_clock(CLOCK_MONOTONIC); }
static inline uint64_t thread_cpu_ns(void) { return read_clock(CLOCK_THREAD_CPUTIME_ID); }

/* The finaliser of splitmix64 (Steele et al. 2014): every bit of x changes half of the result. */
static inline uint64_t mix(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

/* A number in [0, 1) from 64 random bits. */
static inline double uniform(uint64_t bits) { return (double)(bits >> 11) * 0x1p-53; }

static inline void futex_wait(_Atomic uint32_t *word, uint32_t expected)
{
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static inline void futex_wake(_Atomic uint32_t *word, int threads)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, threads, NULL, NULL, 0);
}

#endif
