/* Reads a workload file and works out which rates give which load. */
#include "workload.h"

#include <errno.h>
#include <float.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util.h"

enum { MAX_BYTES = 16 << 20, MAX_OPERATORS = 100000, MAX_WORDS = 16 };
static const char *const BLANKS = " \t\r\v\f";

struct statement {
	const char *path;
	int line;
	char *words[MAX_WORDS];
	int count;
};

static _Noreturn void __attribute__((format(printf, 2, 3)))
bad(const struct statement *statement, const char *format, ...)
{
	char message[512];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(message, sizeof message, format, arguments);
	va_end(arguments);
	die("%s:%d: %s", statement->path, statement->line, message);
}

/* --- fields ------------------------------------------------------------------------------------ */

static void copy_name(const struct statement *s, char *to, const char *from)
{
	static const char letters[] = ".:+-"
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
	static const char *const first = letters + 4;
	size_t length = strlen(from);

	if (!length || length >= NAME_BYTES || !strchr(first, from[0]) ||
	    strspn(from, letters) != length)
		bad(s, "'%.80s' is not a name", from);
	memcpy(to, from, length + 1);
}

/* The text of field `key`, or NULL. */
static const char *field(const struct statement *s, const char *key)
{
	size_t length = strlen(key);

	for (int i = 0; i < s->count; i++)
		if (!strncmp(s->words[i], key, length) && s->words[i][length] == '=')
			return s->words[i] + length + 1;
	return NULL;
}

static double number(const struct statement *s, const char *key, double low, double high,
		     double missing)
{
	const char *text = field(s, key);
	double value;
	char *end;

	if (!text)
		return missing;
	value = strtod(text, &end);
	if (!*text || *end || text[strspn(text, "+-.0123456789eE")]) /* no nan, inf, 0x1p1 */
		bad(s, "%s=%.80s is not a number", key, text);
	if (!(value >= low && value <= high))
		bad(s, "%s=%.80s must be %g to %g", key, text, low, high);
	return value;
}

/* Complains of fields that are not in `known` (" a b c ") or that come twice. */
static void only(const struct statement *s, int names, const char *known)
{
	char key[NAME_BYTES + 2];

	if (s->count <= names)
		bad(s, "'%s' needs %d name%s", s->words[0], names, names > 1 ? "s" : "");
	for (int i = 1; i < s->count; i++) {
		size_t length = strcspn(s->words[i], "=");

		if (i <= names) {
			if (s->words[i][length])
				bad(s, "'%s' needs %d name%s", s->words[0], names,
				    names > 1 ? "s" : "");
			continue;
		}
		if (!s->words[i][length] || !s->words[i][length + 1])
			bad(s, "expected key=value, not '%.80s'", s->words[i]);
		if (length < NAME_BYTES)
			snprintf(key, sizeof key, " %.*s ", (int)length, s->words[i]);
		if (length >= NAME_BYTES || !strstr(known, key))
			bad(s, "'%s' has no field '%.80s'; it has%s", s->words[0], s->words[i], known);
		for (int j = names + 1; j < i; j++)
			if (!strncmp(s->words[i], s->words[j], length + 1))
				bad(s, "%.*s is given twice", (int)length, s->words[i]);
	}
}

/* --- statements -------------------------------------------------------------------------------- */

#define APPEND(array, count, value) \
	do { /* room doubles whenever the count is a power of two */ \
		if (!((count) & ((count) - 1))) \
			(array) = grow(array, (count) ? 2 * (count) : 1, sizeof *(array)); \
		(array)[(count)++] = (value); \
	} while (0)

static size_t find_operator(const struct statement *s, const struct workload *w, const char *name)
{
	for (size_t i = w->operator_count; i-- > 0 && w->operators[i].query == w->query_count - 1;)
		if (!strcmp(w->operators[i].name, name))
			return i;
	bad(s, "query %s has no operator '%.80s'", w->queries[w->query_count - 1].name, name);
}

static void read_query(const struct statement *s, struct workload *w)
{
	struct query_spec query = {0};

	only(s, 1, " class ");
	copy_name(s, query.name, s->words[1]);
	if (field(s, "class"))
		snprintf(query.class, sizeof query.class, "%s", field(s, "class"));
	for (size_t i = 0; i < w->query_count; i++)
		if (!strcmp(w->queries[i].name, query.name))
			bad(s, "query %s is there twice", query.name);
	APPEND(w->queries, w->query_count, query);
}

static void read_operator(const struct statement *s, struct workload *w)
{
	struct operator_spec op = {.query = w->query_count - 1};

	only(s, 1, " cost selectivity block_probability block_max_ms window_ms ");
	copy_name(s, op.name, s->words[1]);
	if (!field(s, "cost"))
		bad(s, "'op' needs cost=");
	op.cost = number(s, "cost", 0, 1e6, 0);
	op.selectivity = number(s, "selectivity", 0, 1000, 1);
	op.block_probability = number(s, "block_probability", 0, 1, 0);
	op.block_max_ms = number(s, "block_max_ms", 0, 60000, 0);
	op.window_ms = number(s, "window_ms", 0, 3600000, 0);
	if ((op.block_probability > 0) != (op.block_max_ms > 0))
		bad(s, "block_probability and block_max_ms belong together");
	for (size_t i = w->operator_count; i-- > 0 && w->operators[i].query == op.query;)
		if (!strcmp(w->operators[i].name, op.name))
			bad(s, "operator %s is there twice", op.name);
	if (w->operator_count >= MAX_OPERATORS)
		bad(s, "more than %d operators", MAX_OPERATORS);
	APPEND(w->operators, w->operator_count, op);
}

static void read_edge(const struct statement *s, struct workload *w)
{
	struct edge_spec edge = {0};

	only(s, 2, " share ");
	edge.source = find_operator(s, w, s->words[1]);
	edge.target = find_operator(s, w, s->words[2]);
	edge.share = number(s, "share", DBL_MIN, 1, 1);
	for (size_t i = w->edge_count;
	     i-- > 0 && w->operators[w->edges[i].target].query == w->query_count - 1;)
		if (w->edges[i].source == edge.source && w->edges[i].target == edge.target)
			bad(s, "edge %s %s is there twice", s->words[1], s->words[2]);
	w->operators[edge.source].outputs++;
	w->operators[edge.target].inputs++;
	APPEND(w->edges, w->edge_count, edge);
}

static void read_trace(const struct statement *s, struct edge_spec *edge, const char *name)
{
	const char *slash = strrchr(s->path, '/');
	struct statement at = {.line = 0};
	char *path, *line = NULL, *end;
	size_t room = 0;
	FILE *file;

	if (asprintf(&path, "%.*s%s", name[0] != '/' && slash ? (int)(slash - s->path + 1) : 0,
		     s->path, name) < 0)
		die("out of memory");
	at.path = path;
	file = fopen(path, "re");
	if (!file)
		bad(s, "cannot read trace %s: %s", path, strerror(errno));
	while (getline(&line, &room, file) >= 0) {
		double time;

		at.line++;
		line[strcspn(line, "#\n")] = 0;
		if (!line[strspn(line, BLANKS)])
			continue;
		time = strtod(line, &end);
		if (end == line || end[strspn(end, BLANKS)])
			bad(&at, "'%.80s' is not a time in seconds", line);
		if (!(time >= 0 && time <= 1e9))
			bad(&at, "time %.80s must be 0 to 1e9 seconds", line);
		if (edge->trace_length && time < edge->trace[edge->trace_length - 1])
			bad(&at, "time %.80s is before the one above it", line);
		APPEND(edge->trace, edge->trace_length, time);
	}
	free(line);
	fclose(file);
	if (!edge->trace_length || edge->trace[edge->trace_length - 1] <= 0)
		bad(s, "trace %s needs an arrival after time 0", path);
	free(path);
}

static void read_source(const struct statement *s, struct workload *w)
{
	static const char *const kinds[] = {"poisson", "constant", "onoff", "trace"};
	struct edge_spec edge = {.source = SIZE_MAX, .share = 1};
	const char *kind;
	int k = 0;

	only(s, 1, " rate arrivals on_ms off_ms shape trace ");
	kind = field(s, "arrivals") ? field(s, "arrivals") : kinds[0];
	while (k < 4 && strcmp(kind, kinds[k]))
		k++;
	if (k == 4)
		bad(s, "arrivals=%.80s is not known; one of: poisson constant onoff trace", kind);
	edge.arrivals = (enum arrivals)k;
	edge.target = find_operator(s, w, s->words[1]);
	edge.rate = number(s, "rate", DBL_MIN, 1e9, 1);
	edge.on_ms = number(s, "on_ms", DBL_MIN, 3600000, 0);
	edge.off_ms = number(s, "off_ms", DBL_MIN, 3600000, 0);
	edge.shape = number(s, "shape", 1.000001, 100, 0);
	if (edge.arrivals == ONOFF ? !(edge.on_ms > 0 && edge.off_ms > 0)
				   : edge.on_ms > 0 || edge.off_ms > 0 || edge.shape > 0)
		bad(s, "arrivals=onoff, and only it, needs on_ms= and off_ms=");
	if ((edge.arrivals == TRACE) != (field(s, "trace") != NULL))
		bad(s, "arrivals=trace and trace=FILE belong together");
	if (edge.arrivals == TRACE)
		read_trace(s, &edge, field(s, "trace"));
	for (size_t i = 0; i < w->edge_count; i++)
		if (w->edges[i].source == SIZE_MAX && w->edges[i].target == edge.target)
			bad(s, "operator %s has a source already", s->words[1]);
	w->operators[edge.target].inputs++;
	APPEND(w->edges, w->edge_count, edge);
}

/* --- the whole --------------------------------------------------------------------------------- */

/* Puts the edges in the order of their targets (stable), and the operators upstream first. */
static void arrange(const struct statement *s, struct workload *w)
{
	size_t *first = allocate(w->operator_count + 1, sizeof *first), ready = 0, done = 0;
	size_t *missing = allocate(w->operator_count, sizeof *missing);
	struct edge_spec *sorted = allocate(w->edge_count, sizeof *sorted);

	for (size_t i = 0; i < w->edge_count; i++)
		first[w->edges[i].target + 1]++;
	for (size_t i = 0; i < w->operator_count; i++)
		first[i + 1] += first[i];
	for (size_t i = 0; i < w->edge_count; i++) {
		size_t target = w->edges[i].target;

		sorted[first[target]++] = w->edges[i];
		if (w->edges[i].source != SIZE_MAX)
			missing[target]++;
		else if (w->operators[target].inputs > 1)
			die("%s: source on operator %s, which has upstream operators", s->path,
			    w->operators[target].name);
	}
	free(w->edges);
	w->edges = sorted;
	w->order = allocate(w->operator_count, sizeof *w->order);
	for (size_t i = 0; i < w->operator_count; i++) {
		const struct operator_spec *op = &w->operators[i];

		if (!op->inputs)
			die("%s: operator %s has no input: no edge leads to it and no source", s->path,
			    op->name);
		if (op->window_ms > 0 && op->inputs != 2)
			die("%s: window_ms: operator %s has %d inputs, a join needs 2", s->path,
			    op->name, op->inputs);
		if (!missing[i])
			w->order[ready++] = i;
	}
	/* Downstream edges are found by a pass over all edges for each generation of operators. */
	while (done < ready) {
		size_t end = ready;
		char *now = allocate(w->operator_count, 1);

		for (; done < end; done++)
			now[w->order[done]] = 1;
		for (size_t i = 0; i < w->edge_count; i++)
			if (sorted[i].source != SIZE_MAX && now[sorted[i].source] &&
			    !--missing[sorted[i].target])
				w->order[ready++] = sorted[i].target;
		free(now);
	}
	for (size_t i = 0; i < w->edge_count; i++)
		if (ready < w->operator_count && missing[sorted[i].target] &&
		    missing[sorted[i].source])
			die("%s: query %s has a cycle through or above edge %s %s", s->path,
			    w->queries[w->operators[sorted[i].target].query].name,
			    w->operators[sorted[i].source].name,
			    w->operators[sorted[i].target].name);
	free(first);
	free(missing);
}

static void read_statement(const struct statement *s, struct workload *w)
{
	const char *kind = s->words[0];

	if (!w->name[0]) {
		if (strcmp(kind, "workload"))
			bad(s, "the first statement must be 'workload NAME'");
		only(s, 1, " base_cost_us ");
		copy_name(s, w->name, s->words[1]);
		w->base_cost_us = number(s, "base_cost_us", DBL_MIN, 1e6, 50);
	} else if (!strcmp(kind, "query")) {
		read_query(s, w);
	} else if (!strcmp(kind, "op") || !strcmp(kind, "edge") || !strcmp(kind, "source")) {
		if (!w->query_count)
			bad(s, "'%s' before the first 'query'", kind);
		(kind[0] == 'o' ? read_operator : kind[0] == 'e' ? read_edge : read_source)(s, w);
	} else {
		bad(s, "unknown statement '%.80s'; one of: workload query op edge source", kind);
	}
}

struct workload workload_read(const char *path)
{
	struct statement s = {.path = path};
	struct workload w = {0};
	char *line = NULL;
	size_t room = 0, bytes = 0;
	ssize_t length;
	FILE *file = fopen(path, "re");

	if (!file)
		die("cannot read workload %s: %s", path, strerror(errno));
	errno = 0;
	while ((length = getline(&line, &room, file)) >= 0) {
		char *rest = line, *word;

		s.line++;
		bytes += (size_t)length;
		if (bytes > MAX_BYTES)
			die("%s: larger than %d MB", path, MAX_BYTES >> 20);
		if (memchr(line, 0, (size_t)length))
			bad(&s, "not text");
		line[strcspn(line, "#\n")] = 0;
		s.count = 0;
		while ((word = strsep(&rest, BLANKS))) {
			if (!*word)
				continue;
			if (s.count == MAX_WORDS)
				bad(&s, "too many fields");
			s.words[s.count++] = word;
		}
		if (s.count)
			read_statement(&s, &w);
	}
	if (ferror(file))
		die("cannot read workload %s: %s", path, strerror(errno));
	free(line);
	fclose(file);
	if (!w.operator_count)
		die("%s: no operators", path);
	arrange(&s, &w);
	if (!(workload_demand(&w, 1, NULL) > 0))
		die("%s: no operator that gets tuples costs anything", path);
	return w;
}

double workload_demand(const struct workload *w, double scale, double *rates)
{
	double *rate = allocate(w->operator_count, sizeof *rate); /* sum of the inputs */
	double *product = allocate(w->operator_count, sizeof *product), demand = 0;
	size_t *first = allocate(w->operator_count + 1, sizeof *first);
	size_t *by_source = allocate(w->edge_count, sizeof *by_source);

	/* Edges by their source, so that each is looked at once, when its producer is done. */
	for (size_t i = 0; i < w->edge_count; i++)
		if (w->edges[i].source != SIZE_MAX)
			first[w->edges[i].source + 1]++;
	for (size_t i = 0; i < w->operator_count; i++) {
		first[i + 1] += first[i];
		product[i] = 1;
	}
	for (size_t i = 0; i < w->edge_count; i++) {
		const struct edge_spec *edge = &w->edges[i];

		if (edge->source != SIZE_MAX) {
			by_source[first[edge->source]++] = i;
		} else {
			rate[edge->target] += scale * edge->rate;
			product[edge->target] *= scale * edge->rate;
		}
	}
	for (size_t n = 0; n < w->operator_count; n++) {
		size_t i = w->order[n];
		const struct operator_spec *op = &w->operators[i];
		double out = rate[i];

		if (op->window_ms > 0) /* pairs inside the window: Sharaf et al. 2006, section 5 */
			out = 2 * op->window_ms * 1e-3 * product[i];
		demand += rate[i] * op->cost;
		for (size_t e = i ? first[i - 1] : 0; e < first[i]; e++) {
			const struct edge_spec *edge = &w->edges[by_source[e]];

			rate[edge->target] += out * op->selectivity * edge->share;
			product[edge->target] *= out * op->selectivity * edge->share;
		}
	}
	if (rates)
		memcpy(rates, rate, w->operator_count * sizeof *rate);
	free(rate);
	free(product);
	free(first);
	free(by_source);
	return demand;
}

double workload_scale(const struct workload *w, double cpus, double base_cost_s)
{
	double demand = cpus / base_cost_s, low = 0, high = 1;

	/* Joins make the demand grow faster than the rate, so it is searched, not divided. */
	while (workload_demand(w, high, NULL) < demand)
		high *= 2;
	for (int i = 0; i < 60; i++) {
		double middle = (low + high) / 2;

		*(workload_demand(w, middle, NULL) < demand ? &low : &high) = middle;
	}
	return high;
}
