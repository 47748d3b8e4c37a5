"""Boots a guest kernel on top of this machine's own files and runs a command in it.

The guest's root is the host's / over virtiofs, read-only, with tmpfs where programs write: there
is no image to build, and paths inside and outside are the same, so a virtual environment or a
build tree of the host works in the guest as it is. Boot, run and exit take about five seconds
under emulation.

KVM is used where a guest really boots with it. /dev/kvm can exist and be useless (nested
virtualisation), so that is tried once per boot of the host and remembered.

A guest of another kind of machine (arm64) has a root of Debian packages for that, see `roots`, and
this machine's files only where they are shown: the current folder, this one, and what is named. It
may write to its root; nothing of that stays.

A guest ends by itself: it is bounded in time, and QEMU and virtiofsd die with the process that
started them, even if that is killed.
"""

import contextlib
import ctypes
import dataclasses
import functools
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import debian
import initramfs
import kernels
import qemu
import roots

__all__ = [
    "NO_GUEST",
    "TIMED_OUT",
    "Guest",
    "GuestError",
    "Options",
    "at_hand",
    "boot",
    "kvm_works",
    "missing",
    "prepare",
]

TIMED_OUT = 124  # exit code of a command that was stopped, as timeout(1) has it
NO_GUEST = 125  # exit code when the guest died without giving one
UP_S = 60.0  # an emulated guest that is not up by then never will be, even on a busy machine
UP_KVM_S = 15.0
WRITABLE = ("/tmp", "/var/tmp", "/mnt")
# Source, folder, type, options; /proc is there before.
FSTAB = (
    ("sysfs", "/sys", "sysfs", "defaults"),
    ("dev", "/dev", "devtmpfs", "defaults"),
    ("devpts", "/dev/pts", "devpts", "X-mount.mkdir"),
    ("bpf", "/sys/fs/bpf", "bpf", "defaults"),
    ("tracefs", "/sys/kernel/tracing", "tracefs", "defaults"),
    ("debugfs", "/sys/kernel/debug", "debugfs", "defaults"),
    ("cgroup2", "/sys/fs/cgroup", "cgroup2", "defaults"),
    ("tmpfs", "/dev/shm", "tmpfs", "X-mount.mkdir"),
    ("tmpfs", "/run", "tmpfs", "defaults"),
)
PREFIX = "sched-ctl-vm-"
PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h
VIRTIOFSD = ("/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd")  # Debian 12, Debian 13
# QEMU 7.2's emulation of AVX2 was seen to fault in numpy's sorting (a gather), in a guest that was
# traced. So numpy leaves out what its wheels have beyond x86-64-v2 (names of numpy 2.4).
NUMPY_WITHOUT = "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"
# A script follows whose mounts are its own and end with it.
PRIVATE = ("unshare", "--mount", "--propagation=private", "sh", "-euc")
HUGE = "huge=always"
HERE = Path(__file__).resolve().parent
_libc = ctypes.CDLL(None, use_errno=True)


class GuestError(Exception):
    """The guest could not be started at all."""


@dataclass(frozen=True)
class Options:
    """What a guest has.

    sockets: each has a last-level cache of its own.
    icount: exact and repeatable emulation, for measurements: the guest's clock counts instructions,
    so the same work takes the same guest time whatever the host does. Two CPUs take turns and share
    the clock: when both are busy each gets half of it. icount_shift: an instruction takes
    2**icount_shift ns.
    write: folders of the host that the guest may write to; everything else is read-only.
    show: folders of the host that stay visible below one of the guest's own tmpfs (`WRITABLE`).
    kvm: None = where it works.
    nice: by how much it gives way to whatever else this machine does, beyond what we do.
    dtb: a device tree in place of the emulator's.
    """

    cpus: int = 2
    sockets: int = 1
    memory: str = "1G"
    timeout_s: float = 120.0
    icount: bool = False
    icount_shift: int = 1
    write: tuple[Path, ...] = ()
    show: tuple[Path, ...] = ()
    kvm: bool | None = None
    append: str = ""
    nice: int = 0
    dtb: Path | None = None


def missing(architecture: str = qemu.OWN) -> str | None:
    """What this machine lacks to run a guest, or None."""
    if shutil.which(qemu.PROGRAM) is None and architecture == qemu.OWN:
        return f"{qemu.PROGRAM} (package qemu-system-x86)"
    if architecture != qemu.OWN and qemu.installed(architecture) is None is qemu.find(architecture):
        return f"{qemu.PROGRAMS[architecture]} (package {qemu.PACKAGES[architecture][0]})"
    if _virtiofsd() is None:
        return "virtiofsd (package qemu-system-common in Debian 12, virtiofsd in 13)"
    if os.geteuid() != 0:
        return "root (for virtiofsd, to show the guest this machine's files)"
    return None


def at_hand(kernel: str) -> Path | None:
    """The image of a row of the matrix, if a guest with one CPU takes nothing to be fetched."""
    image = kernels.at_hand(kernel)
    if image is None or (architecture := kernels.matrix(kernel).architecture) == qemu.OWN:
        return image
    return image if roots.at_hand(architecture) and qemu.at_hand(architecture) else None


class Guest:
    """A running guest. Iterate over it for the command's output, then look at `returncode`."""

    def __init__(
        self, kernel: Path, command: Sequence[str], options: Options, env: Mapping[str, str]
    ) -> None:
        _sweep()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self._log = ""
        self.returncode: int | None = None
        self.up = False
        self._deadline = time.monotonic() + options.timeout_s
        self._children: list[subprocess.Popen[bytes]] = []
        try:
            self._start(kernel, command, options, env)
        except BaseException:
            self.close()
            raise

    def _start(
        self, kernel: Path, command: Sequence[str], options: Options, env: Mapping[str, str]
    ) -> None:
        architecture = kernels.architecture(kernel)
        lacking = missing(architecture)
        if lacking is not None:
            raise GuestError(f"cannot run a guest: this machine lacks {lacking}")
        for path in (HERE, self.folder):
            if re.search(r"\s", str(path)):
                raise GuestError(
                    f"cannot run a guest: its kernel takes no path with a space: {path}\n"
                    f"hint: {'move the checkout' if path is HERE else 'set TMPDIR'}"
                )
        _write_job(self.folder, command, options, env)
        foreign: list[str] = []
        if architecture != qemu.OWN:
            foreign = _foreign(self.folder, architecture, options)
        modules = kernels.modules(kernel)
        if modules is not None:
            try:
                initramfs.write(modules, self.folder / "initramfs")
            except initramfs.InitramfsError as error:
                raise GuestError(str(error)) from error
        socket = self.folder / "virtiofs"
        root = self.folder / "root" / "all" if foreign else Path("/")
        daemon = self._spawn(
            [*foreign, *_virtiofsd_command(socket, root)], "virtiofsd.log", subprocess.DEVNULL, 0
        )
        while not socket.exists():
            if daemon.poll() is not None:
                raise GuestError("virtiofsd failed: " + self._read("virtiofsd.log").strip())
            time.sleep(0.005)
        if not options.kvm and kernels.unpack(kernel, self.folder / "kernel"):
            kernel = self.folder / "kernel"
        # The result channel is a FIFO, so that "up" is seen as soon as it is written; opened for
        # both directions, so that it never reports an end of file.
        os.mkfifo(self.folder / "result")
        self._result = os.open(self.folder / "result", os.O_RDWR | os.O_NONBLOCK)
        wrapper, memory = _memory(self.folder, options)
        self._qemu = self._spawn(
            [*wrapper, *_qemu_command(self.folder, kernel, architecture, options, memory)],
            "qemu.log",
            subprocess.PIPE,
            options.nice,
        )

    def _spawn(
        self, command: list[str], log: str, stdout: int, nice: int
    ) -> "subprocess.Popen[bytes]":
        """nice: not of who serves files, as the clock of an exact guest goes on meanwhile."""
        with open(self.folder / log, "wb") as stderr:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                # In a session of its own, so that Ctrl-C reaches only us and we end it in order.
                start_new_session=True,
                preexec_fn=functools.partial(prepare, nice),
            )
        self._children.append(child)
        return child

    def give_way(self, nice: int) -> None:
        """From now on, by so much. Only root can take it back."""
        for child in self._children[-1:]:  # QEMU
            tasks = Path(f"/proc/{child.pid}/task")
            with contextlib.suppress(OSError):
                for task in tasks.iterdir():
                    with contextlib.suppress(OSError):  # it ended meanwhile
                        os.setpriority(os.PRIO_PROCESS, int(task.name), nice)
            with contextlib.suppress(OSError):
                Path(f"/proc/{child.pid}/autogroup").write_text(str(nice))

    def wait_up(self, timeout_s: float) -> bool:
        """Whether the guest's user space has started within that time."""
        end = min(time.monotonic() + timeout_s, self._deadline)
        while not self.up and self._qemu.poll() is None and time.monotonic() < end:
            select.select([self._result], [], [], 0.2)
            self._read_result()
            if "KVM internal error" in self._read("qemu.log"):
                break  # QEMU stops the guest and waits for somebody to look
        return self.up

    def output(self) -> Iterator[bytes]:
        """Pieces of the command's output (stdout and stderr together) as they come, to its end."""
        while True:
            left = self._deadline - time.monotonic()
            if left <= 0:
                self.returncode = TIMED_OUT
                break
            if select.select([self], [], [], left)[0]:
                piece = self.piece()
                if not piece:
                    break
                yield piece
        self.close()

    def fileno(self) -> int:
        """What can be waited for: readable as soon as there is a piece."""
        assert self._qemu.stdout is not None
        return self._qemu.stdout.fileno()

    def piece(self) -> bytes:
        """The next piece of the output, waited for; empty at the end."""
        return os.read(self.fileno(), 65536)

    def cpu_s(self) -> float:
        """CPU time that the guest has used so far. proc(5), utime and stime"""
        ticks = 0
        for child in self._children:
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(stat[11]) + int(stat[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def pause(self, *, paused: bool) -> None:
        """Stop the emulator, or let it go on. With exact time the guest does not notice."""
        if self._qemu.poll() is None:
            self._qemu.send_signal(signal.SIGSTOP if paused else signal.SIGCONT)

    def _read_result(self) -> None:
        try:
            text = os.read(self._result, 4096).decode(errors="replace")
        except BlockingIOError:
            return
        for line in text.splitlines():
            word, _, code = line.partition(" ")
            self.up = self.up or word == "up"
            if word == "exit" and code.isdigit():
                self.returncode = int(code)

    def console(self) -> str:
        """The end of what virtiofsd, QEMU and the guest's kernel said."""
        return "".join(
            f"-- {name} --\n{text[-6000:]}\n"
            for name in ("virtiofsd.log", "qemu.log", "console")
            if (text := self._read(name).strip())
        )

    def _read(self, name: str) -> str:
        try:
            return (self.folder / name).read_text(errors="replace")
        except OSError:
            return ""

    def close(self) -> None:
        """End both processes and remove the guest's folder. May be called again."""
        for child in reversed(self._children):
            if child.poll() is None:
                child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()
        self._children.clear()
        if hasattr(self, "_result"):
            self._read_result()
            os.close(self._result)
            del self._result
        if self.folder.exists():
            self._log = self.console()
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def log(self) -> str:
        """`console()` of a guest that has ended."""
        return self._log


@contextlib.contextmanager
def boot(
    kernel: Path,
    command: Sequence[str],
    options: Options = Options(),
    env: Mapping[str, str] | None = None,
) -> Iterator[Guest]:
    """A guest that is up, or has failed to come up; ended when the block is left."""
    env = env or {}
    own = kernels.architecture(kernel) == qemu.OWN
    kvm = own and (_kvm_may_work() if options.kvm is None else options.kvm)
    if kvm and not options.icount:
        guest = Guest(kernel, command, dataclasses.replace(options, kvm=True), env)
        try:
            if guest.wait_up(UP_KVM_S) or options.kvm:
                _remember_kvm(works=guest.up)
                yield guest
                return
        finally:
            guest.close()
        _remember_kvm(works=False)
    guest = Guest(kernel, command, dataclasses.replace(options, kvm=False), env)
    try:
        guest.wait_up(UP_S)
        yield guest
    finally:
        guest.close()


def _write_job(
    folder: Path, command: Sequence[str], options: Options, env: Mapping[str, str]
) -> None:
    """What init.sh reads: the command, and what it mounts."""
    cwd = Path.cwd()
    lines = [
        f"export {name}={shlex.quote(value)}"
        for name, value in {
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "SCHED_CTL_GUEST": "1",
            "NPY_DISABLE_CPU_FEATURES": NUMPY_WITHOUT,
            **env,
        }.items()
    ]
    lines += [f"cd {shlex.quote(str(cwd))}", f"exec {shlex.join(command)}"]
    (folder / "command").write_text("\n".join(lines) + "\n")
    # The job's folder may lie below one of those that are the guest's own, so it comes first.
    mounts = [*FSTAB, (str(folder), "/run/job", "none", "bind,X-mount.mkdir")]
    mounts.append(("/", "/run/host", "none", "bind,X-mount.mkdir"))
    mounts += [("tmpfs", path, "tmpfs", "mode=1777") for path in WRITABLE]
    # The virtual environment may lie elsewhere than the code that it runs.
    show = (*options.show, *options.write, cwd, HERE, Path(sys.prefix))
    writable = {path.resolve() for path in options.write}
    for path in dict.fromkeys(path.resolve() for path in show):
        if path not in writable and not _below(path, WRITABLE):
            continue
        # /run/host is a second mount of the root, without the tmpfs.
        may = "rw" if path in writable else "ro"
        mounts.append((f"/run/host{path}", str(path), "none", f"bind,{may},X-mount.mkdir"))
    text = "".join(" ".join(map(_in_fstab, row)) + " 0 0\n" for row in mounts)
    (folder / "fstab").write_text(text)


def _in_fstab(word: str) -> str:
    return re.sub(r"[\s\\#]", lambda found: f"\\{ord(found[0]):03o}", word)  # fstab(5)


def _sweep() -> None:
    """Remove the folders of runners that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}[0-9]*-*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _below(path: Path, folders: Sequence[str]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _virtiofsd() -> str | None:
    return next((path for path in VIRTIOFSD if Path(path).exists()), shutil.which("virtiofsd"))


def _foreign(folder: Path, architecture: str, options: Options) -> list[str]:
    """Words that let a program behind them see the root of a guest of another kind of machine.

    Its mounts are its own and end with it; the root is a copy in memory.
    """
    try:
        packages = roots.root(architecture)
    except roots.RootError as error:
        raise GuestError(f"cannot run a guest: {error}") from error
    (folder / "root").mkdir()
    (folder / "private").touch()  # for init.sh
    writable = {path.resolve() for path in options.write}
    shown = (Path.cwd(), HERE.parent, folder, *options.show, *options.write)
    # Copied: virtiofsd of QEMU 7.2 fails on overlayfs where a hard link is written to.
    lines = [
        f"mount -t tmpfs tmpfs {folder}/root",
        f"cp -a {shlex.quote(str(packages))} {folder}/root/all",
    ]
    for path in dict.fromkeys(path.resolve() for path in shown):
        source, target = shlex.quote(str(path)), shlex.quote(f"{folder}/root/all{path}")
        lines += [f"mkdir -p {target}", f"mount --bind {source} {target}"]
        if path not in writable:
            lines.append(f"mount -o remount,bind,ro {target}")
    lines.append('exec "$@"')
    return [*PRIVATE, "\n".join(lines), "sh"]


def _virtiofsd_command(socket: Path, root: Path) -> list[str]:
    daemon = _virtiofsd()
    assert daemon is not None
    common = [daemon, f"--socket-path={socket}", "--rlimit-nofile=0", "--thread-pool-size=2"]
    if daemon == VIRTIOFSD[0]:  # the one in C, part of QEMU up to 7.2
        return [*common, "-o", f"source={root},cache=always,sandbox=chroot,xattr"]
    return [*common, f"--shared-dir={root}", "--cache=always", "--sandbox=chroot", "--xattr"]


# What a guest's kernel and its emulator are told by kind of machine. Where one says that it copies
# bytes as fast as words, kernel and libc do so, which takes an emulator eight times as long, and
# exact time, too. Pointer authentication as the architecture has it takes most of the emulator's
# time; `impdef` is a cheap one.
CONSOLE = {
    "amd64": "console=ttyS0 tsc=reliable no_timer_check",
    "arm64": "console=ttyAMA0",
}
MACHINE = {
    "amd64": ("q35", "max,erms=off,fsrm=off"),
    "arm64": ("virt,gic-version=3", "max,pauth-impdef=on"),
}


def _memory(folder: Path, options: Options) -> tuple[list[str], str]:
    """Words before the emulator's, and the backend of the guest's memory, which is shared.

    In huge pages where the machine has them, as an emulator goes all over that memory. Files in
    memory have them only where a mount says so; it is the emulator's own and ends with it.
    Documentation/admin-guide/mm/transhuge.rst
    """
    if not _has_huge_files():
        return [], f"memory-backend-memfd,size={options.memory}"
    place = folder / "memory"
    place.mkdir()
    # 0: no limit; QEMU has its own.
    mount = f"mount -t tmpfs -o {HUGE},size=0 tmpfs {shlex.quote(str(place))}"
    backend = f"memory-backend-file,size={options.memory},mem-path={place},align=2M"
    return [*PRIVATE, f'{mount} && exec "$@"', "sh"], backend


@functools.cache
def _has_huge_files() -> bool:
    """Tried with a mount of its own, over a folder that is always there."""
    try:
        done = subprocess.run(
            [*PRIVATE, f"mount -t tmpfs -o {HUGE} tmpfs /proc"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except OSError:
        return False
    return done.returncode == 0


def _qemu_command(
    folder: Path, kernel: Path, architecture: str, options: Options, memory: str
) -> list[str]:
    if options.cpus < 1:
        raise GuestError(f"a guest has at least one CPU, not {options.cpus}")
    program = qemu.installed(architecture) if options.cpus == 1 else None
    program = program or qemu.find(architecture)
    if program is None:
        raise GuestError(f"{qemu.PROGRAMS[architecture]} does not run")
    if options.icount and options.cpus > 1 and not program.is_good:
        raise GuestError(
            f"icount on two CPUs needs QEMU 8.1 or later, and this is {program}: "
            f"{program.lacking}\n"
            "hint: install a later QEMU, or use --cpus 1"
        )
    machine, model = MACHINE[architecture]
    if options.kvm:
        accelerator = ["-accel", "kvm", "-cpu", "host"]
    else:
        thread = "multi" if program.is_good and not options.icount else "single"
        accelerator = ["-accel", f"tcg,thread={thread}", "-cpu", model]
    if options.icount:
        accelerator += ["-icount", f"shift={options.icount_shift},sleep=off"]
    root = "rw" if options.write or architecture != qemu.OWN else "ro"
    append = (
        f"rootfstype=virtiofs root=rootfs {root} init={HERE}/init.sh job={folder} "
        f"{CONSOLE[architecture]} panic=-1 quiet loglevel=4 psi=1 mitigations=off "
        f"cryptomgr.notests=1 initcall_blacklist=jent_mod_init noreplace-smp {options.append}"
    )
    return [
        *program.command,
        *("-nodefaults", "-no-user-config", "-machine", machine),
        *accelerator,
        *("-smp", f"{options.cpus},sockets={options.sockets}", "-m", options.memory),
        *("-object", f"{memory},id=mem,share=on"),
        *("-numa", "node,memdev=mem"),
        *("-chardev", f"socket,id=root,path={folder}/virtiofs"),
        *("-device", "vhost-user-fs-pci,chardev=root,tag=rootfs"),
        *("-kernel", str(kernel), "-append", append),
        *(("-initrd", str(initrd)) if (initrd := folder / "initramfs").exists() else ()),
        *(("-dtb", str(options.dtb)) if options.dtb else ()),
        *("-display", "none", "-no-reboot", "-serial", f"file:{folder}/console"),
        *("-device", "virtio-serial-pci"),
        *("-chardev", "file,id=out,path=/dev/stdout"),
        *("-device", "virtserialport,chardev=out,name=out"),
        *("-chardev", f"file,id=result,path={folder}/result"),
        *("-device", "virtserialport,chardev=result,name=result"),
    ]


def prepare(nice: int) -> None:
    """What a child does before it is another program."""
    _die_with_parent()
    # Where sessions share the CPU first, and then their processes, a new session counts as nice 0,
    # whatever we were started at. sched(7)
    if value := os.nice(nice):
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(value))


def _die_with_parent() -> None:
    # Kernel: the signal comes when the *thread* that forked us ends, so guests are started from
    # a thread that lives as long as they do. prctl(2)
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _kvm_note() -> Path:
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return debian.cache() / f"kvm-{boot_id}"


def kvm_works(kernel: Path) -> bool:
    """Whether a guest boots with KVM here; tried where that is not known yet.

    One for another kind of machine never does, and tells nothing of the others.
    """
    if kernels.architecture(kernel) != qemu.OWN:
        return False
    if _kvm_may_work() and not _kvm_note().exists():
        with boot(kernel, ["true"]):
            pass
    return _kvm_may_work()


def _kvm_may_work() -> bool:
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return False
    try:
        return _kvm_note().read_text() == "yes"
    except OSError:
        return True  # not known yet: try it


def _remember_kvm(*, works: bool) -> None:
    note = _kvm_note()
    with contextlib.suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        for old in note.parent.glob("kvm-*"):
            old.unlink()
        note.write_text("yes" if works else "no")
