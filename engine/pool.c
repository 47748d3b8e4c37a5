/* A user-level scheduler: a fixed pool of workers, each of which picks the most urgent operator that
 * has input and room downstream and that no other worker has, and lets it process all, half or at
 * most N of the tuples that wait. With the policies that a controller sets this is EdgeWise (USENIX
 * ATC 2019) and Haren (DEBS 2019) in one.
 *
 * An operator is `ready` (a bit) from the push that finds it idle until a worker has found it empty
 * under the lock; the worker looks again after clearing the bit, so no tuple is forgotten. A pick
 * looks at the ready operators only.
 *
 * Elastic scheduling in IBM Streams (PLDI 2017): workers above the `level` park before their next
 * turn. A period is measured only while all that are told to park have.
 */
#include <stdio.h>
#include <string.h>

#include "elastic.h"
#include "engine.h"
#include "urgency.h"
#include "util.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_t *workers;
static _Atomic uint64_t *ready; /* a bit an operator */
static size_t ready_words;
static _Atomic uint32_t asleep, wakeups; /* workers without work; the futex they sleep on */
static struct engine *engine;

static _Atomic uint64_t level;          /* workers that may work */
static _Atomic uint32_t parked, levels; /* workers that do not; the futex they park on */
static struct elastic elastic;
static struct {
	uint64_t begun_ns, tuples, idle, ticks; /* of the period */
} period;

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

/* Waits while the worker of this number is above the level. Who was woken to work passes it on. */
static void park(size_t worker)
{
	atomic_fetch_add(&parked, 1);
	wake_one();
	for (;;) {
		uint32_t seen = atomic_load(&levels);

		if (worker < atomic_load(&level) || atomic_load(&engine->stop))
			break;
		futex_wait(&levels, seen);
	}
	atomic_fetch_sub(&parked, 1);
}

static void *run(void *row)
{
	size_t worker = (size_t)((struct thread_row *)row - engine->shared.threads) - 2;
	struct operator *op = NULL;
	char name[16];
	uint64_t now = now_ns(), begun;

	snprintf(name, sizeof name, "worker-%zu", worker);
	thread_enter(row, name, "worker");
	while (!atomic_load(&engine->stop)) {
		uint32_t seen;

		pthread_mutex_lock(&lock);
		if (op)
			release(op);
		if (worker >= atomic_load(&level)) {
			op = NULL;
			pthread_mutex_unlock(&lock);
			park(worker);
			now = now_ns();
			continue;
		}
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

/* --- elastic ----------------------------------------------------------------------------------- */

/* Ticks of all CPUs since the machine started, and those without work (proc_stat(5)). */
static void cpu_ticks(uint64_t *idle, uint64_t *all)
{
	unsigned long long t[8] = {0};
	FILE *stat = fopen("/proc/stat", "re");

	*idle = *all = 0;
	if (!stat)
		return;
	if (fscanf(stat, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &t[0], &t[1], &t[2], &t[3],
		   &t[4], &t[5], &t[6], &t[7]) == 8) {
		*idle = t[3] + t[4];
		for (size_t i = 0; i < 8; i++)
			*all += t[i];
	}
	fclose(stat);
}

static uint64_t processed(void)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < engine->workload.operator_count; i++)
		sum += get(engine->operators[i].activity->in);
	return sum;
}

static void set_level(uint64_t wanted)
{
	atomic_store(&level, wanted);
	set(engine->shared.header->level, wanted);
	atomic_fetch_add(&levels, 1);
	futex_wake(&levels, INT32_MAX);
	atomic_fetch_add(&wakeups, 1); /* who sleeps without work parks, or looks for some */
	futex_wake(&wakeups, INT32_MAX);
}

static void note(struct engine *e, struct level_change one)
{
	if (!(e->level_count & (e->level_count - 1)))
		e->levels = grow(e->levels, e->level_count ? 2 * e->level_count : 1, sizeof one);
	e->levels[e->level_count++] = one;
}

void pool_tick(struct engine *e, uint64_t now)
{
	uint64_t length = (uint64_t)(e->options.elastic_s * 1e9), idle, all;
	struct level_change one = {.level = elastic.level};

	if (!length || now < e->epoch_ns || atomic_load(&e->generated))
		return;
	if (!period.begun_ns || now - period.begun_ns >= length)
		cpu_ticks(&idle, &all);
	if (period.begun_ns) {
		if (now - period.begun_ns < length)
			return;
		one.seconds = (double)(now - period.begun_ns) * 1e-9;
		one.throughput = (double)(processed() - period.tuples) / one.seconds;
		if (all > period.ticks)
			one.busy = 1 - (double)(idle - period.idle) / (double)(all - period.ticks);
		note(e, one);
		elastic_step(&elastic, one.throughput, one.busy);
		period.begun_ns = 0;
		if (elastic.level != one.level)
			set_level(elastic.level);
	}
	if (atomic_load(&parked) != e->options.workers - elastic.level)
		return;
	period.begun_ns = now;
	period.tuples = processed();
	period.idle = idle;
	period.ticks = all;
}

void pool_start(struct engine *e)
{
	engine = e;
	elastic_begin(&elastic, 1, e->options.workers);
	atomic_store(&level, e->options.elastic_s > 0 ? elastic.level : e->options.workers);
	set(e->shared.header->level, atomic_load(&level));
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
	set_level(e->options.workers);
	for (size_t i = 0; i < e->options.workers; i++)
		pthread_join(workers[i], NULL);
	free(workers);
	free((void *)ready);
}
