/* labspe: a small stream processing engine for experiments with scheduling. */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "engine.h"
#include "live.h"
#include "results.h"
#include "util.h"

enum { TICK_NS = 20000000, THREAD_ROWS = 2 }; /* rows of main and sources; workers follow */

/* --- options ----------------------------------------------------------------------------------- */

#define OPTIONS(O) \
	O(utilisation, "U", "load: the operators need U * cpus CPUs (0.8)") \
	O(cpus, "K", "CPUs that the utilisation counts (those it may use, at most the workers)") \
	O(base_cost_us, "US", "CPU time of a cost of 1 (as in the file)") \
	O(seed, "N", "of arrivals, filters and splits (1)") \
	O(duration, "S", "seconds that the sources run (10)") \
	O(forever, NULL, "the sources run until a signal comes") \
	O(delay, "S", "before the sources start: to set up what schedules the threads (0.001)") \
	O(warmup, "S", "tuples due in the first S seconds are not measured (1)") \
	O(drain, "S", "then process what is left for at most S seconds (20)") \
	O(bounded, "N", "queues between operators hold N tuples, their producers wait (unbounded)") \
	O(threads, "KIND", "operator: one each; pool:K: K workers pick operators (operator)") \
	O(batch, "B", "pool: an operator's turn is all, half, or at most N waiting tuples (1)") \
	O(elastic, "S", "pool: every S seconds as many of its workers as throughput asks for (all)") \
	O(pool_policy, "P", "pool, until a controller sets another: qs or fcfs (qs)") \
	O(sources, "KIND", "fifo: source thread as SCHED_FIFO if allowed; fair: as the others (fifo)") \
	O(burn, "KIND", "work: multiply; nop: cheaper to emulate (work)") \
	O(step_ns, "NS", "CPU time of a step of work, instead of calibrating it") \
	O(results, "FILE", "write results as JSON; - is standard output (a summary is printed)") \
	O(record, "FILE", "write every departure: due, entry, out ns (u64), operator, ideal ns (u32)") \
	O(shm, "PATH", "shared-memory file (/dev/shm/labspe.PID)") \
	O(describe, NULL, "print the rates that the load means as JSON, and stop") \
	O(layout, NULL, "print the layout of the shared-memory file as JSON, and stop") \
	O(help, NULL, "print this, and stop")

#define ENUMERATE(name, value, help) OPTION_##name,
enum option_id { OPTIONS(ENUMERATE) OPTION_COUNT };
#define LONG(name, value, help) {#name, (value) ? required_argument : no_argument, NULL, 0},
static struct option long_options[] = {OPTIONS(LONG) {0}};

static void dash(char *name)
{
	for (; *name; name++)
		*name = *name == '_' ? '-' : *name;
}

static void help(void)
{
	puts("usage: labspe [OPTION ...] WORKLOAD\n\n"
	     "Runs the queries of a workload, one thread an operator, and reports throughput,\n"
	     "latency and slowdown. SIGINT and SIGTERM end it early and in order. Workload files are\n"
	     "run by 'sched-ctl lab FILE [OPTION ...]', which hands them over resolved.\n");
#define HELP(name, value, help) \
	{ \
		char shown[64] = "--" #name; \
		dash(shown); \
		strcat(strcat(shown, (value) ? " " : ""), (value) ? (value) : ""); \
		printf("  %-20s %s\n", shown, help); \
	}
	OPTIONS(HELP)
}

static double number(const char *name, const char *text, double low, double high)
{
	char *end;
	double value = strtod(text, &end);

	if (!*text || *end || !(value >= low && value <= high))
		die("--%s %s: must be a number from %g to %g", name, text, low, high);
	return value;
}

/* The position of `text` in a list of words that ends in NULL. */
static unsigned word(const char *name, const char *text, const char *const words[])
{
	unsigned i = 0;

	while (words[i] && strcmp(text, words[i]))
		i++;
	if (!words[i])
		die("--%s %s: must be %s or %s", name, text, words[0], words[1]);
	return i;
}

static void set_option(struct options *o, enum option_id id, const char *name, const char *text,
		       bool *describe)
{
	char *layout;

	switch (id) {
	case OPTION_utilisation: o->utilisation = number(name, text, 1e-6, 1000); break;
	case OPTION_cpus: o->cpus = number(name, text, 1e-3, 1e5); break;
	case OPTION_base_cost_us: o->base_cost_us = number(name, text, 1e-3, 1e6); break;
	case OPTION_seed: o->seed = (uint64_t)number(name, text, 0, 1e15); break;
	case OPTION_duration: o->duration_s = number(name, text, 0.001, 1e6); break;
	case OPTION_forever: o->duration_s = INFINITY; break;
	case OPTION_delay: o->delay_s = number(name, text, 0.001, 1e6); break;
	case OPTION_warmup: o->warmup_s = number(name, text, 0, 1e6); break;
	case OPTION_drain: o->drain_s = number(name, text, 0, 1e6); break;
	case OPTION_bounded: o->capacity = (uint64_t)number(name, text, 1, 1e9); break;
	case OPTION_threads:
		if (!strncmp(text, "pool:", 5))
			o->workers = (uint64_t)number(name, text + 5, 1, 1024);
		else if (!strcmp(text, "operator"))
			o->workers = 0;
		else
			die("--threads %s: must be operator or pool:K", text);
		break;
	case OPTION_batch:
		o->batch_kind = !strcmp(text, "all") ? BATCH_ALL : !strcmp(text, "half") ? BATCH_HALF
											 : BATCH_COUNT;
		if (o->batch_kind == BATCH_COUNT)
			o->batch = (uint64_t)number(name, text, 1, 1e9);
		break;
	case OPTION_elastic: o->elastic_s = number(name, text, 0.1, 1e6); break;
	case OPTION_pool_policy:
		o->pool_policy = word(name, text, (const char *const[]){"qs", "fcfs", NULL});
		break;
	case OPTION_sources:
		o->generator_fair = word(name, text, (const char *const[]){"fifo", "fair", NULL});
		break;
	case OPTION_burn: o->burn = word(name, text, (const char *const[]){"work", "nop", NULL}); break;
	case OPTION_step_ns: o->step_ns = number(name, text, 1e-3, 1e6); break;
	case OPTION_results: o->results = text; break;
	case OPTION_record: o->record = text; break;
	case OPTION_shm: o->shm = text; break;
	case OPTION_describe: *describe = true; break;
	case OPTION_layout:
		layout = layout_json();
		fputs(layout, stdout);
		free(layout);
		exit(0);
	case OPTION_help: help(); exit(0);
	case OPTION_COUNT: break;
	}
}

static struct options parse_options(int argc, char **argv, bool *describe)
{
	struct options o = {.utilisation = 0.8, .duration_s = 10, .delay_s = 0.001, .warmup_s = 1,
			    .drain_s = 20, .seed = 1, .batch_kind = BATCH_COUNT, .batch = 1};
	cpu_set_t allowed;
	int at, found;

	for (unsigned i = 0; i < OPTION_COUNT; i++) {
		char *name = strdup(long_options[i].name);

		dash(name);
		long_options[i].name = name;
	}
	while ((found = getopt_long(argc, argv, "h", long_options, &at)) != -1) {
		if (found == 'h')
			at = OPTION_help;
		else if (found)
			die("labspe --help lists the options");
		set_option(&o, (enum option_id)at, long_options[at].name, optarg, describe);
	}
	if (optind != argc - 1)
		die("one workload file is needed; labspe --help lists the options");
	if (o.elastic_s > 0 && !o.workers)
		die("--elastic: only a pool is elastic; --threads pool:K says how many workers at most");
	o.workload = argv[optind];
	if (!o.cpus) {
		o.cpus = sched_getaffinity(0, sizeof allowed, &allowed) ? 1 : CPU_COUNT(&allowed);
		if (o.workers && (double)o.workers < o.cpus)
			o.cpus = (double)o.workers;
	}
	return o;
}

static void describe(const struct engine *engine)
{
	const struct workload *w = &engine->workload;
	double *rates = allocate(w->operator_count, sizeof *rates);
	double demand = workload_demand(w, engine->scale, rates);

	printf("{\"workload\": \"%s\", \"base_cost_us\": %.17g, \"scale\": %.17g, \"cpus_needed\": %.17g,"
	       " \"operators\": [", w->name, engine->options.base_cost_us, engine->scale,
	       demand * engine->options.base_cost_us * 1e-6);
	for (size_t i = 0; i < w->operator_count; i++)
		printf("%s\n {\"query\": \"%s\", \"name\": \"%s\", \"rate\": %.17g}", i ? "," : "",
		       w->queries[w->operators[i].query].name, w->operators[i].name, rates[i]);
	puts("]}");
	free(rates);
}

/* --- the run ----------------------------------------------------------------------------------- */

/* Tuples in all queues; 0 means that all have left (a tuple is consumed only after what it became
 * has been produced, so it is always in some queue). */
static uint64_t waiting(struct engine *engine, struct samples *samples)
{
	size_t n = engine->workload.operator_count;
	double sum = 0, squares = 0;

	for (size_t i = 0; i < n; i++) {
		double length = (double)operator_queue(&engine->operators[i]);

		sum += length;
		squares += length * length;
	}
	if (samples) {
		samples->count++;
		samples->queue_sum += sum;
		samples->queue_variance += squares / (double)n - sum / (double)n * sum / (double)n;
	}
	return (uint64_t)sum;
}

static bool drained(struct engine *engine)
{
	uint64_t before = 0, after = 0;

	for (size_t i = 0; i < engine->workload.edge_count; i++)
		before += atomic_load(&engine->shared.produced[i].tuples);
	if (waiting(engine, NULL))
		return false;
	for (size_t i = 0; i < engine->workload.edge_count; i++)
		after += atomic_load(&engine->shared.produced[i].tuples);
	return before == after;
}

/* Counters at one moment; a measurement is the difference of two. */
static struct measured count(struct engine *engine)
{
	struct measured m = {0};
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	m.seconds = (double)now_ns() * 1e-9;
	m.cpu_s = (double)read_clock(CLOCK_PROCESS_CPUTIME_ID) * 1e-9;
	m.context_switches = (uint64_t)(usage.ru_nvcsw + usage.ru_nivcsw);
	for (size_t i = 0; i < engine->workload.operator_count; i++) {
		const struct operator *op = &engine->operators[i];

		m.ingested += op->ingress ? get(op->activity->in) : 0;
		m.departed += op->egress ? get(op->activity->out) : 0;
	}
	return m;
}

/* Waits a tick; true if a signal asks us to stop. */
static bool tick(struct engine *engine, const sigset_t *signals)
{
	bool asked = sigtimedwait(signals, NULL, &(struct timespec){0, TICK_NS}) > 0;

	set(engine->shared.header->heartbeat_ns, now_ns());
	live_tick(engine, now_ns());
	pool_tick(engine, now_ns());
	return asked;
}

static struct measured run(struct engine *engine, const sigset_t *signals)
{
	const struct options *o = &engine->options;
	struct measured start = {0}, end;
	struct samples samples = {0};
	uint64_t begun;
	bool asked = false, warm = false;

	while (!asked && !atomic_load(&engine->generated)) {
		asked = tick(engine, signals);
		if (!warm && now_ns() >= engine->record_from_ns) {
			warm = true;
			start = count(engine);
		}
		if (warm)
			waiting(engine, &samples);
	}
	end = count(engine);
	if (!warm)
		start = end;
	atomic_store(&engine->shared.header->state, DRAINING);
	begun = now_ns();
	while (!asked && !drained(engine) && (double)(now_ns() - begun) < o->drain_s * 1e9)
		asked = tick(engine, signals);
	end.drain_s = (double)(now_ns() - begun) * 1e-9;
	end.seconds -= start.seconds;
	end.cpu_s -= start.cpu_s;
	end.context_switches -= start.context_switches;
	end.ingested -= start.ingested;
	end.departed -= start.departed;
	end.samples = samples;
	return end;
}

static void create_shared(struct engine *engine, const char *path)
{
	const struct workload *w = &engine->workload;
	struct shared_size size = {w->query_count, w->operator_count, w->edge_count, 0,
				   THREAD_ROWS + engine->options.workers};
	struct header *header;

	for (size_t i = 0; i < w->operator_count; i++)
		size.egresses += !w->operators[i].outputs;
	engine->shared = shared_create(path, size);
	die_removes(path);
	header = engine->shared.header;
	set(header->pid, (uint64_t)getpid());
	set(header->start_time, start_time((uint64_t)getpid()));
	set(header->generation, 1);
	set(header->heartbeat_ns, now_ns());
	set(header->workers, engine->options.workers);
	set(header->capacity, engine->options.capacity);
	set(header->base_cost_ns, engine->options.base_cost_us * 1e3);
	thread_enter(&engine->shared.threads[0], "labspe", "main");
}

static void summary(const struct engine *engine, const struct measured *m)
{
	double count = 0, latency = 0, slowdown = 0;

	for (size_t i = 0; i < engine->workload.operator_count; i++) {
		struct egress_row *egress = engine->operators[i].egress;

		if (!egress)
			continue;
		count += (double)get(egress->departures);
		latency += get(egress->latency_ns);
		slowdown += get(egress->slowdown);
	}
	fprintf(stderr, "labspe: %s: %.0f tuples/s in, %.0f/s out, mean latency %.3f ms, mean slowdown "
			"%.2f, CPU %.2f, %.0f switches/s, %llu tuples left\n",
		engine->workload.name, m->seconds > 0 ? (double)m->ingested / m->seconds : 0,
		m->seconds > 0 ? (double)m->departed / m->seconds : 0,
		count ? latency / count * 1e-6 : 0, count ? slowdown / count : 0,
		m->seconds > 0 ? m->cpu_s / m->seconds : 0,
		m->seconds > 0 ? (double)m->context_switches / m->seconds : 0,
		(unsigned long long)m->left);
}

int main(int argc, char **argv)
{
	struct engine *engine = allocate(1, sizeof *engine);
	bool only_describe = false;
	char path[64];
	sigset_t signals;
	struct measured measured;
	FILE *results = NULL, *record = NULL;

	engine->options = parse_options(argc, argv, &only_describe);
	engine->workload = workload_read(engine->options.workload);
	if (!engine->options.base_cost_us)
		engine->options.base_cost_us = engine->workload.base_cost_us;
	engine->scale = workload_scale(&engine->workload,
				       engine->options.utilisation * engine->options.cpus,
				       engine->options.base_cost_us * 1e-6);
	if (only_describe) {
		describe(engine);
		return 0;
	}
	if (engine->options.results)
		results = results_open(engine->options.results);
	if (engine->options.record)
		record = results_open(engine->options.record);
	/* Blocked in all threads; the main thread waits for them. */
	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	signal(SIGPIPE, SIG_IGN);
	if (!engine->options.step_ns)
		engine->options.step_ns = burn_calibrate(engine->options.burn);
	snprintf(path, sizeof path, SHM_FOLDER "/" SHM_PREFIX "%d", (int)getpid());
	if (!engine->options.shm) {
		engine->options.shm = path;
		shared_remove_left_over();
	}
	create_shared(engine, engine->options.shm);
	engine_build(engine);
	if (!engine->options.workers)
		live_open(engine);
	(engine->options.workers ? pool_start : threads_start)(engine);
	engine->epoch_ns = now_ns() + (uint64_t)(engine->options.delay_s * 1e9);
	engine->record_from_ns = engine->epoch_ns + (uint64_t)(engine->options.warmup_s * 1e9);
	set(engine->shared.header->epoch_ns, engine->epoch_ns);
	sources_start(engine, 1);
	while (!atomic_load(&engine->shared.threads[1].tid))
		nanosleep(&(struct timespec){0, 100000}, NULL);
	atomic_store(&engine->shared.header->state, RUNNING);
	atomic_store(&engine->shared.header->magic, LAYOUT_MAGIC);

	measured = run(engine, &signals);
	atomic_store(&engine->stop, true);
	sources_join();
	(engine->options.workers ? pool_join : threads_join)(engine);
	live_close(engine);
	measured.left = waiting(engine, NULL);
	atomic_store(&engine->shared.header->state, DONE);
	unlink(engine->options.shm);
	die_removes(NULL);
	if (record)
		results_record(engine, record);
	if (results)
		results_write(engine, &measured, results);
	summary(engine, &measured);
	engine_free(engine);
	free(engine);
	return 0;
}
