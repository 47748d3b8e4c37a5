/* What a context switch costs: two threads that hand a byte to and fro through pipes, then two
 * that yield to each other. With an argument so many pairs at a time, each bound to a CPU of its
 * own; with a second one the partners are bound to the CPU that many further on. Prints their tids,
 * waits for a line on stdin, then prints ns a round trip and ns a yield: of all pairs together, as
 * CPUs that take turns on one clock share it. For bench/guest/kernel.py.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 20000, MOST_PAIRS = 64 };

struct pair {
	int there[2], back[2], cpu;
};

static int pairs = 1, apart;
static _Atomic int ready;
static pthread_barrier_t stage;
static _Atomic uint64_t began[2] = {UINT64_MAX, UINT64_MAX}, ended[2];

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void begin(int which)
{
	uint64_t now = now_ns(), first = atomic_load(&began[which]);

	while (now < first && !atomic_compare_exchange_weak(&began[which], &first, now))
		;
}

static void end(int which)
{
	uint64_t now = now_ns(), last = atomic_load(&ended[which]);

	while (now > last && !atomic_compare_exchange_weak(&ended[which], &last, now))
		;
}

static void settle(int cpu)
{
	cpu_set_t cpus;

	if (pairs > 1 || apart) {
		CPU_ZERO(&cpus);
		CPU_SET(cpu, &cpus);
		if (pthread_setaffinity_np(pthread_self(), sizeof(cpus), &cpus))
			exit(1);
	}
	printf("%d\n", (int)syscall(SYS_gettid));
	fflush(stdout);
	atomic_fetch_add(&ready, 1);
	pthread_barrier_wait(&stage);
}

static void *partner(void *argument)
{
	struct pair *pair = argument;
	char byte;

	settle(pair->cpu + apart);
	for (int i = 0; i < ROUNDS / pairs; i++)
		if (read(pair->there[0], &byte, 1) != 1 || write(pair->back[1], &byte, 1) != 1)
			exit(1);
	pthread_barrier_wait(&stage);
	for (int i = 0; i < ROUNDS / pairs; i++)
		sched_yield();
	return NULL;
}

static void *first(void *argument)
{
	struct pair *pair = argument;
	char byte = 0;

	settle(pair->cpu);
	begin(0);
	for (int i = 0; i < ROUNDS / pairs; i++)
		if (write(pair->there[1], &byte, 1) != 1 || read(pair->back[0], &byte, 1) != 1)
			exit(1);
	end(0);
	pthread_barrier_wait(&stage);
	begin(1);
	for (int i = 0; i < ROUNDS / pairs; i++)
		sched_yield();
	end(1);
	return NULL;
}

int main(int argc, char **argv)
{
	static const char *const names[] = {"pipe", "yield"};
	static struct pair all[MOST_PAIRS];
	static pthread_t threads[2 * MOST_PAIRS];

	if (argc > 1)
		pairs = atoi(argv[1]);
	if (argc > 2)
		apart = atoi(argv[2]);
	if (pairs < 1 || pairs > MOST_PAIRS || pthread_barrier_init(&stage, NULL, 2 * pairs + 1))
		return 2;
	for (int i = 0; i < pairs; i++) {
		all[i].cpu = i;
		if (pipe(all[i].there) || pipe(all[i].back) ||
		    pthread_create(&threads[2 * i], NULL, first, &all[i]) ||
		    pthread_create(&threads[2 * i + 1], NULL, partner, &all[i]))
			return 1;
	}
	while (atomic_load(&ready) < 2 * pairs)
		usleep(1000);
	puts("ready");
	fflush(stdout);
	getchar();
	pthread_barrier_wait(&stage);
	pthread_barrier_wait(&stage);
	for (int i = 0; i < 2 * pairs; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < 2; i++)
		printf("%s %.1f\n", names[i], (double)(ended[i] - began[i]) / (ROUNDS / pairs * pairs));
	return 0;
}
