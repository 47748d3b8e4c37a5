/* A user-level scheduler: a fixed pool of workers, each of which picks the most urgent operator that
 * has input and room downstream and that no other worker has, and lets it process all, half or at
 * most N of the tuples that wait. With the policies that a controller sets this is EdgeWise (USENIX
 * ATC 2019) and Haren (DEBS 2019) in one.
 *
 * An operator is `ready` (a bit) from the push that finds it idle until a worker has found it empty
 * under the lock; the worker looks again after clearing the bit, so no tuple is forgotten. A pick
 * looks at the ready operators only.
 */
#include <stdio.h>
#include <string.h>

#include "engine.h"
#include "urgency.h"
#include "util.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_t *workers;
static _Atomic uint64_t *ready; /* a bit an operator */
static size_t ready_words;
static _Atomic uint32_t asleep, wakeups; /* workers without work; the futex they sleep on */
static struct engine *engine;

static void wake_one(void)
{
	if (!atomic_load(&asleep))
		return;
	atomic_fetch_add(&wakeups, 1);
	futex_wake(&wakeups, 1);
}

static void notify(struct operator *op)
{
	_Atomic uint64_t *word = &ready[op->row / 64];
	uint64_t bit = UINT64_C(1) << op->row % 64;

	if (atomic_load(word) & bit)
		return;
	atomic_fetch_or(word, bit);
	wake_one();
}

/* --- urgency ----------------------------------------------------------------------------------- */

static struct urgency urgency(struct operator *op, uint64_t epoch, uint64_t now)
{
	size_t n = engine->workload.operator_count;
	const shared_f64 *column = engine->shared.urgency + (epoch & 1) * URGENCY_COLUMNS * n + op->row;
	struct form form = {.per_second = engine->options.pool_policy == POOL_FCFS,
			    .per_tuple = engine->options.pool_policy == POOL_QS};

	if (epoch)
		form = (struct form){or_zero(get(column[0])), or_zero(get(column[n])),
				     or_zero(get(column[2 * n])), or_zero(get(column[3 * n]))};
	return urgency_at(&form, form.per_tuple != 0 ? operator_queue(op) : 0,
			  form.per_second != 0 ? operator_head_due(op) : 0, now);
}

/* The most urgent operator that can run, or NULL. Called with the lock held. */
static struct operator *pick(uint64_t now)
{
	struct header *header = engine->shared.header;
	uint64_t epoch = atomic_load(&header->urgency_epoch);
	struct urgency best = {0};
	struct operator *found = NULL;

	/* A controller that died is not obeyed for ever. */
	if (epoch && now >= get(header->urgency_until_ns))
		epoch = 0;
	for (size_t word = 0; word < ready_words; word++) {
		for (uint64_t bits = atomic_load(&ready[word]); bits; bits &= bits - 1) {
			size_t row = word * 64 + (size_t)__builtin_ctzll(bits);
			struct operator *op = &engine->operators[row];
			struct urgency u;
			int more;

			if (op->running || !operator_has_room(op))
				continue;
			u = urgency(op, epoch, now);
			more = found ? compare_urgency(&u, &best) : 1;
			if (more > 0 ||
			    (more == 0 && wins_tie(&u, operator_head_due(op), &best,
						   operator_head_due(found)))) {
				found = op;
				best = u;
			}
		}
	}
	return found;
}

/* --- workers ----------------------------------------------------------------------------------- */

static void turn(struct operator *op)
{
	const struct options *options = &engine->options;
	uint64_t tuples = UINT64_MAX;

	if (options->batch_kind == BATCH_HALF)
		tuples = (operator_queue(op) + 1) / 2;
	else if (options->batch_kind == BATCH_COUNT)
		tuples = options->batch;
	add(op->activity->turns, 1);
	set(op->activity->state, BUSY);
	while (tuples-- && !atomic_load(&engine->stop) && operator_step(op) &&
	       operator_has_room(op))
		;
	set(op->activity->state, IDLE);
}

/* Gives back an operator after its turn. Called with the lock held. */
static void release(struct operator *op)
{
	_Atomic uint64_t *word = &ready[op->row / 64];
	uint64_t bit = UINT64_C(1) << op->row % 64;

	op->running = false;
	if (operator_has_input(op))
		return;
	atomic_fetch_and(word, ~bit);
	if (operator_has_input(op))
		atomic_fetch_or(word, bit);
}

static void *run(void *row)
{
	struct operator *op = NULL;
	char name[16];
	uint64_t now = now_ns(), begun;

	snprintf(name, sizeof name, "worker-%zu",
		 (size_t)((struct thread_row *)row - engine->shared.threads) - 2);
	thread_enter(row, name, "worker");
	while (!atomic_load(&engine->stop)) {
		uint32_t seen;

		pthread_mutex_lock(&lock);
		if (op)
			release(op);
		op = pick(now);
		if (op) {
			op->running = true;
			pthread_mutex_unlock(&lock);
		} else {
			/* Counted as asleep before the last look, so that a push after it wakes us. */
			seen = atomic_load(&wakeups);
			atomic_fetch_add(&asleep, 1);
			op = pick(now);
			if (op)
				op->running = true;
			pthread_mutex_unlock(&lock);
			if (!op && !atomic_load(&engine->stop))
				futex_wait(&wakeups, seen);
			atomic_fetch_sub(&asleep, 1);
			now = now_ns();
			if (!op)
				continue;
		}
		turn(op);
		/* The worker's CPU clock is a system call, too dear for each turn. */
		begun = now;
		now = now_ns();
		add(op->activity->busy_ns, now - begun);
		set(op->activity->cpu_ns, get(op->activity->busy_ns));
		if (engine->options.capacity)
			wake_one(); /* there is room again for somebody */
	}
	return NULL;
}

void pool_start(struct engine *e)
{
	engine = e;
	ready_words = (e->workload.operator_count + 63) / 64;
	ready = allocate(ready_words, sizeof *ready);
	workers = allocate(e->options.workers, sizeof *workers);
	e->notify = notify;
	for (size_t i = 0; i < e->options.workers; i++) {
		struct thread_row *row = &e->shared.threads[i + 2];
		int error = pthread_create(&workers[i], NULL, run, row);

		if (error)
			die("cannot start worker %zu: %s", i, strerror(error));
		while (!atomic_load(&row->tid))
			nanosleep(&(struct timespec){0, 100000}, NULL);
	}
}

void pool_join(struct engine *e)
{
	atomic_fetch_add(&wakeups, 1);
	futex_wake(&wakeups, INT32_MAX);
	for (size_t i = 0; i < e->options.workers; i++)
		pthread_join(workers[i], NULL);
	free(workers);
	free((void *)ready);
}
