/* How far threads get that wait for each other without sleeping: WAY is how, `yield` (sched_yield),
 * `spin` (pause, as Thread.onSpinWait) or `futex` (a timed wait of 50 us, by turns with spins).
 * The first thread waits for each step of the second, which is 200 us of CPU time; with `pair` the
 * second one waits for the first one's as well. Prints their tids, waits for a line on stdin, then
 * prints steps a second. For bench/kernel.py.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { WORK_NS = 200000, SPINS = 100, SECONDS = 3 };

static _Atomic int steps[2], going;
static int pair;
static const char *way;

static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void wait_for(_Atomic int *word, int old)
{
	const struct timespec timeout = {0, 50000};

	while (atomic_load(word) == old) {
		if (way[0] == 'y')
			sched_yield();
		else if (way[0] == 'f')
			syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, old, &timeout, NULL, 0);
		for (int i = 0; way[0] != 'y' && i < SPINS; i++)
			__builtin_ia32_pause();
	}
}

static void work(uint64_t ns)
{
	uint64_t end = cpu_ns() + ns;

	while (cpu_ns() < end)
		for (volatile int i = 0; i < 50; i++)
			;
}

static void *body(void *which)
{
	int me = which != NULL, other = !me;

	printf("%d\n", (int)syscall(SYS_gettid));
	fflush(stdout);
	while (!going)
		usleep(1000);
	for (int step = 0;; step++) {
		if (me == 0 || (pair && step))
			wait_for(&steps[other], pair ? step - me : atomic_load(&steps[other]));
		work(me ? WORK_NS : WORK_NS / 10);
		atomic_store(&steps[me], step + 1);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	int before;

	way = argc > 1 ? argv[1] : "yield";
	pair = argc > 2 && !strcmp(argv[2], "pair");
	pthread_create(&thread, NULL, body, NULL);
	usleep(50000);
	pthread_create(&thread, NULL, body, (void *)1);
	usleep(50000);
	puts("ready");
	fflush(stdout);
	getchar();
	going = 1;
	usleep(300000);
	before = steps[1];
	sleep(SECONDS);
	printf("steps %.1f\n", (double)(steps[1] - before) / SECONDS);
	return 0;
}
