// SPDX-License-Identifier: GPL-2.0-only
/*
 * What threads cost each other on this machine and under the scheduler that they run under, all on
 * one CPU:
 *   hop      a thread wakes up the next one and sleeps, round and round: a wake-up and a switch
 *   wake     the wake-up alone, for the waker: one thread wakes up many that sleep
 *   source   what a thread that computes loses to one of a higher class that wakes up at a time
 *
 * Each is a quantile of many, so that a disturbance does not count. The machine should be idle.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { THREADS = 8, LAPS = 500, WAKES = 500, SOURCES = 1000, SOURCE_NS = 300000 };

struct ring {
	_Atomic uint32_t word[THREADS]; // 1: it is this thread's turn
	_Atomic int asleep, stage;
	int64_t tids[THREADS];
	double lap_s[LAPS], wake_s[WAKES * THREADS];
	int64_t wakes;
	int cpu;
};

struct member {
	struct ring *ring;
	int index;
};

static double now_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void nap(long ns) { nanosleep(&(struct timespec){ 0, ns }, NULL); }

static void stay_on(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof set, &set);
}

static void wake(_Atomic uint32_t *word)
{
	atomic_store(word, 1);
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void await(_Atomic uint32_t *word)
{
	while (!atomic_exchange(word, 0))
		syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double quantile(double *values, int64_t n, double q)
{
	if (n <= 0)
		return 0;
	qsort(values, (size_t)n, sizeof *values, ascending);
	return values[(int64_t)(q * (double)(n - 1))];
}

static double clock_s(void)
{
	double each[64];
	for (int i = 0; i < 64; i++) {
		double start = now_s();
		each[i] = now_s() - start;
	}
	return quantile(each, 64, 0.5);
}

// Stage 1: the ring. Stage 2: thread 0 wakes up all others, which go back to sleep.
static void *member(void *argument)
{
	struct member *m = argument;
	struct ring *r = m->ring;
	int i = m->index;
	stay_on(r->cpu);
	atomic_store((_Atomic int64_t *)&r->tids[i], syscall(SYS_gettid));
	for (int lap = 0; lap < LAPS; lap++) {
		await(&r->word[i]);
		if (!i)
			r->lap_s[lap] = now_s();
		wake(&r->word[(i + 1) % THREADS]);
	}
	if (i) {
		struct sched_param none = { 0 };
		if (sched_getscheduler(0) == SCHED_OTHER)
			sched_setscheduler(0, SCHED_BATCH, &none); // or it would preempt its waker
		for (int n = 0; n < WAKES; n++)
			await(&r->word[i]);
		return NULL;
	}
	await(&r->word[0]); // the last lap is over, and all others sleep after the next nap
	for (int n = 0; n < WAKES; n++) {
		nap(200000);
		for (int k = 1; k < THREADS; k++) {
			double start = now_s();
			wake(&r->word[k]);
			if (k > 1) // the first finds cold caches
				r->wake_s[r->wakes++] = now_s() - start;
		}
	}
	return NULL;
}

struct source {
	int cpu;
	_Atomic bool above, stop;
};

static void *source(void *argument)
{
	struct source *s = argument;
	struct sched_param top = { .sched_priority = 98 };
	struct timespec t;
	stay_on(s->cpu);
	s->above = !pthread_setschedparam(pthread_self(), SCHED_FIFO, &top);
	clock_gettime(CLOCK_MONOTONIC, &t);
	for (int n = 0; n < SOURCES; n++) {
		t.tv_nsec += SOURCE_NS;
		if (t.tv_nsec >= 1000000000)
			t.tv_nsec -= 1000000000, t.tv_sec++;
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
	}
	atomic_store(&s->stop, true);
	return NULL;
}

struct victim {
	struct source *source;
	_Atomic int64_t tid;
	_Atomic uint32_t begin;
	double lost_s;
};

// Computes, and looks at the clock all the time: a gap is time that somebody else had.
static void *victim(void *argument)
{
	struct victim *v = argument;
	double each, last, gaps[4 * SOURCES];
	int64_t n = 0;
	stay_on(v->source->cpu);
	atomic_store(&v->tid, syscall(SYS_gettid));
	await(&v->begin);
	each = clock_s();
	last = now_s();
	while (!atomic_load(&v->source->stop)) {
		double now = now_s();
		if (now - last > 8 * each + 3e-7 && n < 4 * SOURCES)
			gaps[n++] = now - last - each;
		last = now;
	}
	v->lost_s = quantile(gaps, n, 0.3); // some are ticks, and others who want the CPU
	return NULL;
}

// found: hop_s, wake_s, source_s. ready: told the tids of the threads that wake each other up and of
// the one that computes, before they do, to put them under a scheduler. Returns 0, or an error number.
EXPORT int sim_calibrate(double *found, void (*ready)(const int64_t *tids, int64_t n))
{
	struct ring *r = calloc(1, sizeof *r);
	struct member members[THREADS];
	int64_t tids[THREADS + 1];
	pthread_t threads[THREADS + 2];
	int error = r ? 0 : 12, cpu = sched_getcpu(), n = 0;
	double each = clock_s();
	if (error)
		return error;
	r->cpu = cpu < 0 ? 0 : cpu;
	struct source s = { .cpu = r->cpu };
	struct victim v = { .source = &s };
	for (; n < THREADS && !error; n++) {
		members[n] = (struct member){ r, n };
		error = pthread_create(&threads[n], NULL, member, &members[n]);
	}
	if (!error)
		error = pthread_create(&threads[THREADS], NULL, victim, &v);
	if (error)
		return error; // threads that were started sleep for ever; the process is out of means
	for (int i = 0; i <= THREADS; i++) {
		_Atomic int64_t *tid = i < THREADS ? (_Atomic int64_t *)&r->tids[i] : &v.tid;
		while (!(tids[i] = atomic_load(tid)))
			nap(1000000);
	}
	nap(20000000);
	if (ready)
		ready(tids, THREADS + 1);
	wake(&r->word[0]);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (int lap = LAPS - 1; lap > 0; lap--)
		r->lap_s[lap] -= r->lap_s[lap - 1];
	found[0] = (quantile(r->lap_s + 1, LAPS - 1, 0.5) - each) / THREADS;
	found[1] = quantile(r->wake_s, r->wakes, 0.5) - each;
	free(r);

	error = pthread_create(&threads[THREADS + 1], NULL, source, &s);
	if (error)
		s.stop = true;
	wake(&v.begin);
	if (!error)
		pthread_join(threads[THREADS + 1], NULL);
	pthread_join(threads[THREADS], NULL);
	found[2] = v.lost_s;
	return error;
}
