/* One thread an operator, as most stream processing engines run them: which operator gets the CPU
 * is up to the kernel. A thread sleeps on a futex while its operator has no input, and the thread
 * that brings a tuple wakes it directly. */
#include <string.h>

#include "engine.h"
#include "util.h"

enum { PUBLISH_NS = 1000000 };

static void notify(struct operator *op)
{
	if (atomic_load(&op->sleeping) && atomic_exchange(&op->sleeping, 0))
		futex_wake(&op->sleeping, 1);
}

/* The thread's CPU clock is a system call, so it is read once a millisecond, not once a tuple. */
static void publish_cpu(struct operator *op, uint64_t now)
{
	if (now - op->published_ns < PUBLISH_NS)
		return;
	op->published_ns = now;
	set(op->activity->cpu_ns, thread_cpu_ns());
}

static void *run(void *argument)
{
	struct operator *op = argument;
	struct operator_row *row = &op->engine->shared.operators[op->row];
	char shown[16] = {0};

	memcpy(shown, op->name, strnlen(op->name, sizeof shown - 1));
	pthread_setname_np(pthread_self(), shown);
	set(row->start_time, start_time((uint64_t)gettid()));
	set(op->activity->since_ns, now_ns());
	atomic_store(&row->tid, (uint64_t)gettid());
	while (!atomic_load(&op->engine->stop)) {
		if (get(op->activity->state) == BUSY && operator_step(op)) {
			publish_cpu(op, now_ns());
			continue;
		}
		atomic_store(&op->sleeping, 1);
		if (operator_has_input(op)) {
			atomic_store(&op->sleeping, 0);
			if (get(op->activity->state) != BUSY)
				activity_change(op->activity, BUSY);
			continue;
		}
		if (get(op->activity->state) != IDLE) {
			activity_change(op->activity, IDLE);
			publish_cpu(op, get(op->activity->since_ns));
		}
		if (!atomic_load(&op->engine->stop))
			futex_wait(&op->sleeping, 1);
	}
	activity_change(op->activity, IDLE);
	set(op->activity->cpu_ns, thread_cpu_ns());
	return NULL;
}

void threads_start(struct engine *engine)
{
	pthread_attr_t attributes;
	size_t count = engine->workload.operator_count;

	engine->notify = notify;
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 256 << 10);
	for (size_t i = 0; i < count; i++) {
		int error = pthread_create(&engine->operators[i].thread, &attributes, run,
					   &engine->operators[i]);

		if (error)
			die("cannot start thread %zu of %zu: %s", i + 1, count, strerror(error));
	}
	pthread_attr_destroy(&attributes);
	for (size_t i = 0; i < count; i++)
		while (!atomic_load(&engine->shared.operators[i].tid))
			nanosleep(&(struct timespec){0, 100000}, NULL);
}

void threads_join(struct engine *engine)
{
	for (size_t i = 0; i < engine->workload.edge_count; i++) {
		atomic_store(&engine->queues[i].producer_waits, 0);
		futex_wake(&engine->queues[i].producer_waits, 1);
	}
	for (size_t i = 0; i < engine->workload.operator_count; i++) {
		atomic_store(&engine->operators[i].sleeping, 0);
		futex_wake(&engine->operators[i].sleeping, 1);
	}
	for (size_t i = 0; i < engine->workload.operator_count; i++)
		pthread_join(engine->operators[i].thread, NULL);
}
