/* What helper threads cost a saturated query: three operators in a row that pass tuples on through
 * bounded queues, and helpers that wake up each millisecond and do next to nothing, as a Flink's
 * flushers do with a short buffer timeout. With an argument so many helpers. Prints the tids, the
 * operators' first; waits for a line on stdin; then prints what the two seconds after it gave. For
 * bench/guest/kernel.py.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { OPERATORS = 3, MOST_HELPERS = 32, QUEUE = 8, COST = 120000, HELPER_COST = 1600 };

struct times {
	double ran_ns, waited_ns, runs;
};

static int helpers = 5;
static int tids[OPERATORS + MOST_HELPERS];
static sem_t filled[OPERATORS], room[OPERATORS];
static _Atomic int ready;
static _Atomic long tuples;
static pthread_barrier_t stage;

static void work(int turns)
{
	for (volatile int i = 0; i < turns; i++)
		;
}

static void begin(long which)
{
	tids[which] = (int)syscall(SYS_gettid);
	atomic_fetch_add(&ready, 1);
	pthread_barrier_wait(&stage);
}

static void *operate(void *argument)
{
	long at = (long)argument;

	begin(at);
	for (;;) {
		if (at) {
			while (sem_wait(&filled[at]))
				;
			sem_post(&room[at]);
		}
		work(COST);
		if (at + 1 == OPERATORS) {
			atomic_fetch_add(&tuples, 1);
			continue;
		}
		while (sem_wait(&room[at + 1]))
			;
		sem_post(&filled[at + 1]);
	}
	return NULL;
}

static void *help(void *argument)
{
	static const struct timespec pause = {0, 1000000};

	begin(OPERATORS + (long)argument);
	usleep(173 * (useconds_t)(long)argument);
	for (;;) {
		clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
		work(HELPER_COST);
	}
	return NULL;
}

/* Of the threads from one up to another: proc_pid_schedstat(5), summed up. */
static struct times spent(int from, int to)
{
	struct times sum = {0}, t;
	char path[64];

	for (int i = from; i < to; i++) {
		snprintf(path, sizeof(path), "/proc/self/task/%d/schedstat", tids[i]);
		FILE *file = fopen(path, "r");

		if (!file || fscanf(file, "%lf %lf %lf", &t.ran_ns, &t.waited_ns, &t.runs) != 3)
			exit(1);
		fclose(file);
		sum.ran_ns += t.ran_ns;
		sum.waited_ns += t.waited_ns;
		sum.runs += t.runs;
	}
	return sum;
}

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	pthread_t thread;

	if (argc > 1)
		helpers = atoi(argv[1]);
	if (helpers < 1 || helpers > MOST_HELPERS ||
	    pthread_barrier_init(&stage, NULL, OPERATORS + (unsigned)helpers + 1))
		return 2;
	for (int i = 0; i < OPERATORS; i++) {
		sem_init(&filled[i], 0, 0);
		sem_init(&room[i], 0, QUEUE);
	}
	for (long i = 0; i < OPERATORS; i++)
		if (pthread_create(&thread, NULL, operate, (void *)i))
			return 1;
	for (long i = 0; i < helpers; i++)
		if (pthread_create(&thread, NULL, help, (void *)i))
			return 1;
	while (atomic_load(&ready) < OPERATORS + helpers)
		usleep(1000);
	for (int i = 0; i < OPERATORS + helpers; i++)
		printf("%d\n", tids[i]);
	puts("ready");
	fflush(stdout);
	getchar();
	pthread_barrier_wait(&stage);
	usleep(300000);

	double began_s = now_s();
	long before = tuples;
	struct times operators = spent(0, OPERATORS), others = spent(OPERATORS, OPERATORS + helpers);

	sleep(2);
	double elapsed_s = now_s() - began_s, done = (double)(tuples - before);
	struct times operated = spent(0, OPERATORS), helped = spent(OPERATORS, OPERATORS + helpers);
	double runs = helped.runs - others.runs;

	printf("tuples/s %.1f\n", done / elapsed_s);
	printf("ns/tuple %.0f\n", (operated.ran_ns - operators.ran_ns) / done);
	printf("runs/s %.1f\n", (operated.runs - operators.runs) / elapsed_s);
	printf("helper-runs/s %.1f\n", runs / elapsed_s);
	printf("helper-ns/run %.0f\n", (helped.ran_ns - others.ran_ns) / runs);
	printf("helper-wait-ns %.0f\n", (helped.waited_ns - others.waited_ns) / runs);
	fflush(stdout);
	_exit(0);
}
