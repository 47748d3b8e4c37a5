/* Live rows: see live.h. The main thread takes offers, everybody writes. */
#include "live.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "util.h"

enum { PATIENCE_US = 10000 }; /* for an offer to follow its connection */

static int listener = -1, owner = -1; /* owner: the connection of whoever handed the memory over */
static size_t bytes;

void live_open(struct engine *engine)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	socklen_t length = sizeof address;

	bytes = (engine->workload.operator_count + 1) * sizeof *engine->live_rows;
	engine->live_rows =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (engine->live_rows == MAP_FAILED)
		die("out of memory");
	for (size_t i = 0; i < engine->workload.operator_count; i++)
		engine->operators[i].live = &engine->live_rows[i + 1];
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	/* Without a path the kernel chooses an abstract name that nobody has; nothing is left of it. */
	if (listener < 0 ||
	    bind(listener, (struct sockaddr *)&address, sizeof address.sun_family) ||
	    listen(listener, 4) ||
	    getsockname(listener, (struct sockaddr *)&address, &length)) {
		live_close(engine); /* then it offers nothing */
		return;
	}
	snprintf(engine->shared.header->live_socket, NAME_BYTES, "%.*s",
		 (int)(length - offsetof(struct sockaddr_un, sun_path) - 1), address.sun_path + 1);
}

void live_publish(struct operator *op)
{
	uint64_t tuples, due;

	do {
		tuples = operator_queue(op);
		due = operator_head_due(op);
		set(op->live->head_ns, due);
		atomic_store(&op->live->queue_tuples, tuples);
		/* Of several who write at once, the last one looks again after it has written. */
	} while (operator_queue(op) != tuples || operator_head_due(op) != due);
}

/* Puts other memory where the rows are, at one stroke: whoever is about to write never faults. */
static bool put(struct engine *engine, int flags, int fd)
{
	return mmap(engine->live_rows, bytes, PROT_READ | PROT_WRITE, MAP_FIXED | flags, fd, 0) !=
	       MAP_FAILED;
}

static void leave(struct engine *engine)
{
	atomic_store(&engine->live, false);
	if (!put(engine, MAP_PRIVATE | MAP_ANONYMOUS, -1))
		die("out of memory");
	close(owner);
	owner = -1;
}

/* Is it memory that is large enough, and stays so? */
static bool fits(int fd)
{
	struct stat info;
	void *memory;

	if (fstat(fd, &info))
		return false;
	if (S_ISREG(info.st_mode)) {
		int seals = fcntl(fd, F_GET_SEALS);

		if (info.st_size < (off_t)bytes || seals < 0 || !(seals & F_SEAL_SHRINK))
			return false;
	} else if (info.st_mode & S_IFMT) {
		return false; /* a device, a pipe; a BPF map is of no kind at all */
	}
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	return memory != MAP_FAILED && !munmap(memory, bytes);
}

/* The descriptor that comes over this connection, or -1. */
static int receive(const struct engine *engine, int connection)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(4 * sizeof(int))];
	} control = {0};
	struct live_offer offer = {0};
	struct iovec data = {&offer, sizeof offer};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control,
				 .msg_controllen = sizeof control};
	struct timeval patience = {0, PATIENCE_US};
	struct cmsghdr *found;
	struct ucred peer;
	socklen_t length = sizeof peer;
	ssize_t got;
	size_t count;
	int fds[4];

	if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &length) ||
	    (peer.uid && peer.uid != geteuid()) ||
	    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience))
		return -1;
	got = recvmsg(connection, &message, MSG_CMSG_CLOEXEC);
	found = got < 0 ? NULL : CMSG_FIRSTHDR(&message);
	if (!found || found->cmsg_level != SOL_SOCKET || found->cmsg_type != SCM_RIGHTS)
		return -1;
	count = (found->cmsg_len - CMSG_LEN(0)) / sizeof(int);
	memcpy(fds, CMSG_DATA(found), count * sizeof(int));
	if (count == 1 && got == sizeof offer && !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) &&
	    offer.rows * offer.row_bytes == bytes &&
	    offer.row_bytes == sizeof *engine->live_rows && fits(fds[0]))
		return fds[0];
	while (count--)
		close(fds[count]);
	return -1;
}

/* A newer offer takes the place of an older one, whose owner sees its connection closed. */
static void take(struct engine *engine, int connection)
{
	int fd = receive(engine, connection);

	if (fd < 0) {
		close(connection);
		return;
	}
	if (owner >= 0)
		leave(engine);
	owner = connection;
	if (!put(engine, MAP_SHARED, fd)) {
		close(fd);
		leave(engine);
		return;
	}
	close(fd);
	atomic_store(&engine->live, true);
	for (size_t i = 0; i < engine->workload.operator_count; i++)
		live_publish(&engine->operators[i]);
}

void live_tick(struct engine *engine, uint64_t now)
{
	char byte;
	int connection;

	if (listener < 0)
		return;
	if (owner >= 0 && recv(owner, &byte, 1, MSG_DONTWAIT | MSG_TRUNC) == 0)
		leave(engine); /* it has gone, or been killed */
	connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (connection >= 0)
		take(engine, connection);
	if (owner >= 0)
		set(engine->live_rows[0].head_ns, now);
}

void live_close(struct engine *engine)
{
	if (owner >= 0)
		leave(engine);
	if (listener >= 0)
		close(listener);
	listener = -1;
}
