/* What a context switch costs: two threads that hand a byte to and fro through pipes, then two
 * that yield to each other. Prints their tids, waits for a line on stdin, then prints ns a round
 * trip and ns a yield. For bench/kernel.py.
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

enum { ROUNDS = 20000 };

static int there[2], back[2];
static _Atomic int ready;
static _Atomic int go;

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void pass(int from, int to)
{
	char byte = 0;

	if (read(from, &byte, 1) != 1 || write(to, &byte, 1) != 1)
		exit(1);
}

static void await(int stage)
{
	while (atomic_load(&go) < stage)
		usleep(1000);
}

static void *partner(void *unused)
{
	(void)unused;
	printf("%d\n", (int)syscall(SYS_gettid));
	fflush(stdout);
	atomic_fetch_add(&ready, 1);
	await(1);
	for (int i = 0; i < ROUNDS; i++)
		pass(there[0], back[1]);
	await(2);
	for (int i = 0; i < ROUNDS; i++)
		sched_yield();
	return NULL;
}

static void *first(void *unused)
{
	uint64_t start;
	char byte = 0;

	(void)unused;
	printf("%d\n", (int)syscall(SYS_gettid));
	fflush(stdout);
	atomic_fetch_add(&ready, 1);
	await(1);
	start = now_ns();
	for (int i = 0; i < ROUNDS; i++) {
		if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
			exit(1);
	}
	printf("pipe %.1f\n", (double)(now_ns() - start) / ROUNDS);
	atomic_store(&go, 2);
	start = now_ns();
	for (int i = 0; i < ROUNDS; i++)
		sched_yield();
	printf("yield %.1f\n", (double)(now_ns() - start) / ROUNDS);
	return NULL;
}

int main(void)
{
	pthread_t a, b;

	if (pipe(there) || pipe(back) || pthread_create(&a, NULL, first, NULL) ||
	    pthread_create(&b, NULL, partner, NULL))
		return 1;
	while (atomic_load(&ready) < 2)
		usleep(1000);
	puts("ready");
	fflush(stdout);
	getchar();
	atomic_store(&go, 1);
	pthread_join(a, NULL);
	pthread_join(b, NULL);
	return 0;
}
