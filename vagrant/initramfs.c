/*
 * /init of the small initramfs for kernels that have the drivers of a guest's root as modules:
 * loads them in the order of their names, mounts the root that is shown over virtiofs and goes on
 * with its init, as the kernel does where the drivers are built in. See initramfs.py.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void fail(const char *what, const char *which)
{
	printf("initramfs: %s %s: %s\n", what, which, strerror(errno));
	exit(1); /* the kernel panics, the guest ends */
}

static void load(const char *module)
{
	int fd = open(module, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) && errno != EEXIST))
		fail("cannot load", module);
	close(fd);
}

/* The value of NAME=VALUE on the kernel's command line, or the fallback. */
static char *word(char *line, const char *name, char *fallback)
{
	size_t length = strlen(name);

	for (char *at = strtok(line, " \n"); at; at = strtok(NULL, " \n"))
		if (!strncmp(at, name, length) && at[length] == '=')
			return at + length + 1;
	return fallback;
}

int main(void)
{
	struct dirent **modules;
	char line[4096] = "", *init;
	int count, fd;

	if (chdir("/modules") || (count = scandir(".", &modules, NULL, alphasort)) < 0)
		fail("cannot read", "/modules");
	for (int i = 0; i < count; i++)
		if (modules[i]->d_name[0] != '.')
			load(modules[i]->d_name);

	if (mount("proc", "/proc", "proc", 0, NULL) || (fd = open("/proc/cmdline", O_RDONLY)) < 0 ||
	    read(fd, line, sizeof(line) - 1) < 0)
		fail("cannot read", "/proc/cmdline");
	close(fd);
	umount("/proc");
	if (mount("rootfs", "/root", "virtiofs", strstr(line, " rw ") ? 0 : MS_RDONLY, NULL))
		fail("cannot mount", "the root over virtiofs");
	if (chdir("/root") || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/"))
		fail("cannot change to", "the root");
	init = word(line, "init", "/sbin/init");
	execl(init, init, (char *)NULL);
	fail("cannot start", init);
}
