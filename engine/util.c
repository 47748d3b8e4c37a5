#include "util.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *shared_path;

void die_removes(const char *path)
{
	shared_path = path;
}

void die(const char *format, ...)
{
	va_list arguments;

	fputs("labspe: ", stderr);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	if (shared_path)
		unlink(shared_path);
	_exit(1);
}

void *allocate(size_t count, size_t bytes)
{
	void *memory = calloc(count ? count : 1, bytes);

	if (!memory)
		die("out of memory");
	return memory;
}

void *allocate_lines(size_t count, size_t bytes)
{
	void *memory = aligned_alloc(64, count ? count * bytes : 64);

	if (!memory)
		die("out of memory");
	memset(memory, 0, count * bytes);
	return memory;
}

void *grow(void *memory, size_t count, size_t bytes)
{
	memory = reallocarray(memory, count, bytes);
	if (!memory)
		die("out of memory");
	return memory;
}

uint64_t start_time(uint64_t tid)
{
	char path[64], line[1024], *field;
	FILE *file;
	size_t bytes;

	snprintf(path, sizeof path, "/proc/self/task/%llu/stat", (unsigned long long)tid);
	file = fopen(path, "re");
	if (!file)
		return 0;
	bytes = fread(line, 1, sizeof line - 1, file);
	fclose(file);
	line[bytes] = 0;
	field = strrchr(line, ')'); /* the name, field 2, may hold anything */
	for (int number = 2; field && number < 22; number++)
		field = strchr(field + 1, ' ');
	return field ? strtoull(field, NULL, 10) : 0;
}
