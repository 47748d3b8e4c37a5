#include "results.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "histogram.h"
#include "util.h"

/* The sum over the egresses of a query, or of all. */
struct total {
	double count, latency, processing, slowdown, slowdown_squared;
	double latency_max, processing_max, slowdown_max;
	uint64_t latency_histogram[HISTOGRAM_BUCKETS], processing_histogram[HISTOGRAM_BUCKETS],
		slowdown_histogram[HISTOGRAM_BUCKETS];
};

static void sum(struct total *total, struct egress_row *row)
{
	total->count += (double)get(row->departures);
	total->latency += get(row->latency_ns);
	total->processing += get(row->processing_ns);
	total->slowdown += get(row->slowdown);
	total->slowdown_squared += get(row->slowdown_squared);
	total->latency_max = fmax(total->latency_max, (double)get(row->latency_max_ns));
	total->processing_max = fmax(total->processing_max, (double)get(row->processing_max_ns));
	total->slowdown_max = fmax(total->slowdown_max, get(row->slowdown_max));
	for (unsigned b = 0; b < HISTOGRAM_BUCKETS; b++) {
		total->latency_histogram[b] += get(row->latency_histogram[b]);
		total->processing_histogram[b] += get(row->processing_histogram[b]);
		total->slowdown_histogram[b] += get(row->slowdown_histogram[b]);
	}
}

static void write_distribution(FILE *out, const char *name, const uint64_t *histogram, double mean,
			       double max, double unit)
{
	const char *comma = "";

	fprintf(out, "\"%s\": {\"mean\": %.9g, \"p50\": %.9g, \"p99\": %.9g, \"p99.9\": %.9g, "
		     "\"max\": %.9g, \"histogram\": [", name, mean,
		fmin(max, histogram_quantile(histogram, 0.5) * unit),
		fmin(max, histogram_quantile(histogram, 0.99) * unit),
		fmin(max, histogram_quantile(histogram, 0.999) * unit), max);
	for (unsigned b = 0; b < HISTOGRAM_BUCKETS; b++)
		if (histogram[b]) {
			fprintf(out, "%s[%.9g, %llu]", comma, (double)histogram_low(b) * unit,
				(unsigned long long)histogram[b]);
			comma = ", ";
		}
	fputs("]}", out);
}

static void write_total(FILE *out, const struct total *t)
{
	double n = t->count ? t->count : 1;

	fprintf(out, "\"departures\": %.0f, ", t->count);
	write_distribution(out, "latency_s", t->latency_histogram, t->latency / n * 1e-9,
			   t->latency_max * 1e-9, 1e-9);
	fputs(",\n    ", out);
	write_distribution(out, "processing_s", t->processing_histogram, t->processing / n * 1e-9,
			   t->processing_max * 1e-9, 1e-9);
	fputs(",\n    ", out);
	write_distribution(out, "slowdown", t->slowdown_histogram, t->slowdown / n,
			   t->slowdown_max, 1 / SLOWDOWN_UNIT);
	fprintf(out, ",\n    \"slowdown_l2\": %.9g", sqrt(t->slowdown_squared));
}

static double per_second(uint64_t count, double seconds)
{
	return seconds > 0 ? (double)count / seconds : 0;
}

static void write_operators(FILE *out, const struct engine *engine)
{
	for (size_t i = 0; i < engine->workload.operator_count; i++) {
		const struct operator_spec *spec = &engine->workload.operators[i];
		struct activity_row *a = &engine->shared.activity[i];

		fprintf(out, "%s\n   {\"query\": \"%s\", \"name\": \"%s\", \"in\": %llu, \"out\": %llu, "
			     "\"cpu_s\": %.9g, \"busy_s\": %.9g, \"blocked_s\": %.9g, "
			     "\"cost_s\": %.9g, \"left\": %llu}", i ? "," : "",
			engine->workload.queries[spec->query].name, spec->name,
			(unsigned long long)get(a->in), (unsigned long long)get(a->out),
			(double)get(a->cpu_ns) * 1e-9, (double)get(a->busy_ns) * 1e-9,
			(double)get(a->blocked_ns) * 1e-9,
			(double)engine->operators[i].cost_ns * 1e-9,
			(unsigned long long)operator_queue(&engine->operators[i]));
	}
}

FILE *results_open(const char *path)
{
	FILE *out = strcmp(path, "-") ? fopen(path, "we") : stdout;

	if (!out)
		die("cannot write %s: %s", path, strerror(errno));
	return out;
}

static void close_file(FILE *out)
{
	if (ferror(out) || fflush(out) || (out != stdout && fclose(out)))
		die("cannot write the results: %s", strerror(errno));
}

void results_write(const struct engine *engine, const struct measured *m, FILE *out)
{
	const struct options *o = &engine->options;
	struct total *total = allocate(1, sizeof *total);
	double samples = m->samples.count ? (double)m->samples.count : 1;

	fprintf(out, "{\"workload\": \"%s\", \"utilisation\": %.9g, \"cpus\": %.9g, "
		     "\"base_cost_us\": %.9g, \"seed\": %llu, \"capacity\": %llu, \"workers\": %llu,\n",
		engine->workload.name, o->utilisation, o->cpus, o->base_cost_us,
		(unsigned long long)o->seed, (unsigned long long)o->capacity,
		(unsigned long long)o->workers);
	fprintf(out, " \"seconds\": %.6f, \"drain_s\": %.6f, \"left\": %llu, \"throughput\": %.9g, "
		     "\"departure_rate\": %.9g, \"cpu\": %.6g, \"context_switches_per_s\": %.9g, "
		     "\"queue_mean\": %.9g, \"queue_variance\": %.9g, \"step_ns\": %.9g,\n",
		m->seconds, m->drain_s, (unsigned long long)m->left,
		per_second(m->ingested, m->seconds), per_second(m->departed, m->seconds),
		m->seconds > 0 ? m->cpu_s / m->seconds : 0,
		per_second(m->context_switches, m->seconds), m->samples.queue_sum / samples,
		m->samples.queue_variance / samples, o->step_ns);
	for (size_t i = 0; i < engine->workload.operator_count; i++)
		if (engine->operators[i].egress)
			sum(total, engine->operators[i].egress);
	fputs(" \"total\": {", out);
	write_total(out, total);
	fputs("},\n \"queries\": [", out);
	for (size_t q = 0; q < engine->workload.query_count; q++) {
		memset(total, 0, sizeof *total);
		for (size_t i = 0; i < engine->workload.operator_count; i++)
			if (engine->operators[i].egress && engine->operators[i].spec->query == q)
				sum(total, engine->operators[i].egress);
		fprintf(out, "%s\n   {\"name\": \"%s\", \"class\": \"%s\", ", q ? "," : "",
			engine->workload.queries[q].name, engine->workload.queries[q].class);
		write_total(out, total);
		fputc('}', out);
	}
	fputs("],\n \"operators\": [", out);
	write_operators(out, engine);
	fputs("],\n \"levels\": [", out);
	for (size_t i = 0; i < engine->level_count; i++)
		fprintf(out, "%s\n   {\"level\": %llu, \"seconds\": %.9g, \"throughput\": %.17g, "
			     "\"busy\": %.17g}", i ? "," : "",
			(unsigned long long)engine->levels[i].level, engine->levels[i].seconds,
			engine->levels[i].throughput, engine->levels[i].busy);
	fputs("]}\n", out);
	free(total);
	close_file(out);
}

void results_record(const struct engine *engine, FILE *out)
{
	for (size_t i = 0; i < engine->workload.operator_count; i++)
		fwrite(engine->operators[i].record, sizeof(struct departure),
		       engine->operators[i].recorded, out);
	close_file(out);
}
