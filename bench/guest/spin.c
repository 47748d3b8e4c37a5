/* Threads that never sleep, for bench/guest/caches.py. Arguments: their number, and optionally for how
 * many us each works and then sleeps. Prints a byte when all are there; they begin to work once
 * stdin ends.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int64_t work_ns, sleep_ns;

static int64_t used_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void *run(void *unused)
{
	struct timespec nap = {.tv_nsec = sleep_ns};
	char byte;

	(void)unused;
	if (read(0, &byte, 1))
		_exit(1);
	for (;;) {
		int64_t end = used_ns() + work_ns;

		do
			for (volatile int i = 0; i < 1000; i++)
				;
		while (!sleep_ns || used_ns() < end);
		nanosleep(&nap, NULL);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_attr_t small;
	pthread_t thread;

	if (argc != 2 && argc != 4)
		return 2;
	if (argc == 4) {
		work_ns = atoll(argv[2]) * 1000;
		sleep_ns = atoll(argv[3]) * 1000;
	}
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 32768);
	for (int i = 0; i < atoi(argv[1]); i++)
		if (pthread_create(&thread, &small, run, NULL))
			return 1;
	if (write(1, "x", 1) != 1)
		return 1;
	for (;;)
		pause();
}
