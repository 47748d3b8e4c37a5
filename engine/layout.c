/* Makes the shared-memory file and describes its layout. */
#include "layout.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util.h"

_Static_assert(sizeof(shared_u64) == 8 && sizeof(shared_f64) == 8, "numbers are 8 bytes");

char *layout_json(void)
{
	char *text;
	size_t bytes;
	FILE *out = open_memstream(&text, &bytes);
	const char *comma = "";

	if (!out)
		die("out of memory");
	fprintf(out, "{\"version\": %d, \"name_bytes\": %d, \"histogram_sub_bits\": %d,"
		     " \"histogram_buckets\": %d, \"slowdown_unit\": %g, \"sections\": {",
		LAYOUT_VERSION, NAME_BYTES, HISTOGRAM_SUB_BITS, HISTOGRAM_BUCKETS, SLOWDOWN_UNIT);
#define FIELD(type, field, unit, meaning) \
	fprintf(out, "%s\n    [\"%s\", \"" #type "\", %zu, \"%s\", \"%s\"]", comma, #field, \
		offsetof(ROW, field), unit, meaning); \
	comma = ",";
#define SECTION(name, first) \
	fprintf(out, "%s\n  \"%s\": {\"bytes\": %zu, \"fields\": [", first, name, sizeof(ROW)); \
	comma = "";
#define END fprintf(out, "]}");
#define ROW struct header
	SECTION("header", "") HEADER_FIELDS(FIELD) END
#undef ROW
#define ROW struct query_row
	SECTION("queries", ",") QUERY_FIELDS(FIELD) END
#undef ROW
#define ROW struct operator_row
	SECTION("operators", ",") OPERATOR_FIELDS(FIELD) END
#undef ROW
#define ROW struct activity_row
	SECTION("activity", ",") ACTIVITY_FIELDS(FIELD) END
#undef ROW
#define ROW struct edge_row
	SECTION("edges", ",") EDGE_FIELDS(FIELD) END
#undef ROW
#define ROW struct produced_row
	SECTION("produced", ",") PRODUCED_FIELDS(FIELD) END
#undef ROW
#define ROW struct consumed_row
	SECTION("consumed", ",") CONSUMED_FIELDS(FIELD) END
#undef ROW
#define ROW struct egress_row
	SECTION("egresses", ",") EGRESS_FIELDS(FIELD) END
#undef ROW
#define ROW struct thread_row
	SECTION("threads", ",") THREAD_FIELDS(FIELD) END
#undef ROW
#define ROW struct live_row
	SECTION("live", ",") LIVE_FIELDS(FIELD) END
#undef ROW
	fprintf(out, "}}\n");
	if (fclose(out))
		die("out of memory");
	return text;
}

static void *map_file(const char *path, size_t bytes)
{
	int fd;
	void *memory;

	if (!path) {
		memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		return memory == MAP_FAILED ? NULL : memory;
	}
	/* A file of this name is left over from a killed engine: the pid is ours now. */
	if (unlink(path) && errno != ENOENT)
		return NULL;
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return NULL;
	/* Held until we end, however that is: see left_over(). */
	flock(fd, LOCK_EX | LOCK_NB);
	if (ftruncate(fd, (off_t)bytes)) {
		close(fd);
		return NULL;
	}
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	return memory == MAP_FAILED ? NULL : memory;
}

/*
 * Is this the file of a killed engine of our user? The pid alone does not tell: an engine in another
 * container that shares the folder may have it. The lock alone does not either, while one starts.
 */
static bool left_over(int folder, const char *name)
{
	struct stat info;
	char *end;
	long pid;
	int fd;
	bool dead;

	if (strncmp(name, SHM_PREFIX, strlen(SHM_PREFIX)))
		return false;
	errno = 0;
	pid = strtol(name + strlen(SHM_PREFIX), &end, 10);
	if (errno || *end || pid <= 0 || pid > INT_MAX || !kill((pid_t)pid, 0) || errno != ESRCH)
		return false;
	fd = openat(folder, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return false;
	dead = !fstat(fd, &info) && S_ISREG(info.st_mode) && info.st_uid == geteuid() &&
	       !flock(fd, LOCK_EX | LOCK_NB);
	close(fd);
	return dead;
}

void shared_remove_left_over(void)
{
	DIR *folder = opendir(SHM_FOLDER);
	struct dirent *entry;

	if (!folder)
		return;
	while ((entry = readdir(folder)))
		if (left_over(dirfd(folder), entry->d_name))
			unlinkat(dirfd(folder), entry->d_name, 0);
	closedir(folder);
}

struct shared shared_create(const char *path, struct shared_size size)
{
	char *layout = layout_json();
	uint64_t at = sizeof(struct header);
	struct header header = {0};
	struct shared s;
	char *base;

#define PLACE(field, bytes) \
	header.field = at; \
	at += ((bytes) + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
	header.layout_bytes = strlen(layout);
	PLACE(layout_offset, strlen(layout))
	PLACE(queries_offset, size.queries * sizeof *s.queries)
	PLACE(operators_offset, size.operators * sizeof *s.operators)
	PLACE(activity_offset, size.operators * sizeof *s.activity)
	PLACE(edges_offset, size.edges * sizeof *s.edges)
	PLACE(produced_offset, size.edges * sizeof *s.produced)
	PLACE(consumed_offset, size.edges * sizeof *s.consumed)
	PLACE(threads_offset, size.threads * sizeof *s.threads)
	PLACE(urgency_offset, size.operators * URGENCY_BANKS * URGENCY_COLUMNS * sizeof *s.urgency)
	/* Last, since it is large and those who poll have no need of it. */
	PLACE(egresses_offset, size.egresses * sizeof *s.egresses)
#undef PLACE
	base = map_file(path, at);
	if (!base)
		die("cannot create the shared-memory file %s: %s", path ? path : "", strerror(errno));
	header.version = LAYOUT_VERSION;
	header.bytes = at;
	header.queries_count = size.queries;
	header.operators_count = size.operators;
	header.edges_count = size.edges;
	header.egresses_count = size.egresses;
	header.threads_count = size.threads;
	memcpy(base, &header, sizeof header);
	memcpy(base + header.layout_offset, layout, header.layout_bytes);
	free(layout);
	s.header = (struct header *)base;
	s.queries = (struct query_row *)(base + header.queries_offset);
	s.operators = (struct operator_row *)(base + header.operators_offset);
	s.activity = (struct activity_row *)(base + header.activity_offset);
	s.edges = (struct edge_row *)(base + header.edges_offset);
	s.produced = (struct produced_row *)(base + header.produced_offset);
	s.consumed = (struct consumed_row *)(base + header.consumed_offset);
	s.egresses = (struct egress_row *)(base + header.egresses_offset);
	s.threads = (struct thread_row *)(base + header.threads_offset);
	s.urgency = (shared_f64 *)(base + header.urgency_offset);
	return s;
}
