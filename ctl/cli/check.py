"""What this machine can do for us, why not more, and what to do about it (`sched-ctl check`)."""

import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from sched_ctl.engines.owners import first_user
from sched_ctl.errors import adding
from sched_ctl.kernel import (
    cgroup,
    cpus,
    procfs,
    psi,
    sleeping,
    sockdiag,
    system,
    taskstats,
    tracing,
)
from sched_ctl.probes import threads as probes

__all__ = ["Finding", "check", "few", "verdict"]

MOST_ROWS = 10

# Daemons that change the nice value or the cgroup of other people's processes all the time.
MEDDLERS = {
    "ananicy": "renices processes by rules",
    "ananicy-cpp": "renices processes by rules",
    "uresourced": "gives cgroup weights to the active session",
    "and": "auto nice daemon",
    "verynice": "renices busy processes",
    "irqbalance-ng": "moves load between CPUs",
    "system76-scheduler": "renices processes and writes scheduler settings",
    "falcond": "switches sched_ext schedulers",
    "scx_loader": "switches sched_ext schedulers",
    "gamemoded": "renices games",
    "cpulimit": "stops and continues processes",
}
CAPABILITIES = {"SYS_NICE": 23, "SYS_ADMIN": 21, "SYS_PTRACE": 19, "BPF": 39, "SYS_RESOURCE": 24}


@dataclass(frozen=True, slots=True)
class Finding:
    """good: True, False, or None = neither. do: what the user can do about it, in words; command:
    the same as a line to be copied. taken: it is the backend that `load` would take.
    """

    topic: str
    good: bool | None
    what: str
    do: str | None = None
    command: str | None = None
    taken: bool = False


def check() -> list[Finding]:
    """All findings. Reads only; each topic that cannot be looked at says so and spoils no other."""
    found: list[Finding] = []
    for topic, look in TOPICS.items():
        try:
            found += look()
        except Exception as error:  # a strange machine is what this command is for
            found.append(Finding(topic, None, f"cannot tell: {type(error).__name__}: {error}"))
    taken = _taken(found)
    return [replace(f, good=None) if f.good is False and _harmless(f, taken) else f for f in found]


def _taken(findings: list[Finding]) -> str | None:
    """Name of the backend that `load` would take."""
    return next((_backend(finding) for finding in findings if finding.taken), None)


def _backend(finding: Finding) -> str | None:
    kind, _, name = finding.topic.partition(" ")
    return name if kind == "backend" and name else None


def _harmless(finding: Finding, taken: str | None) -> bool:
    """Whether what does not work is not needed: something else does the same."""
    if taken is None:
        return False
    if finding.topic == "autogroup":
        return taken != "nice"  # cgroups stand above it
    return finding.topic in ("sched_ext", "cgroup") or _backend(finding) is not None


def verdict(findings: list[Finding]) -> tuple[str, str | None]:
    """What `load` will do here and what would be better, in a line; and a line to be copied."""
    taken = _taken(findings)
    if taken is None:
        why = next((f for f in findings if f.topic == "nice" and f.do), None)
        return f"will do nothing: {why.do if why else 'no backend works'}", None
    if taken == "scx":
        return "will use sched_ext: the order at each dispatch, put back by the kernel", None
    better = next((f for f in findings if f.topic == "sched_ext" and f.good is not True), None)
    if better is None:
        return f"will use {taken}", None
    obstacle = better.what.removesuffix(" (SCHED_CLASS_EXT)")
    return f"will use {taken}, not sched_ext: {obstacle}", better.command or better.do


def few(findings: list[Finding]) -> list[Finding]:
    """At most ten rows: what is amiss, what can be done, and in one row what is as it should be."""
    told = [f for f in findings if f.topic != "sched_ext" and _backend(f) is None]
    kernel = [f for f in told if f.topic == "kernel"]
    amiss = [f for f in told if f.good is False]
    other = [f for f in told if f.good is None and f.command is not None]
    rows = [*kernel, *amiss, *other][: MOST_ROWS - 1]
    shown = {f.topic for f in rows}
    fine = dict.fromkeys(f.topic for f in told if f.good and f.topic not in shown)
    return [*rows, Finding("as it should be", True, ", ".join(fine))] if fine else rows


def _kernel() -> Iterator[Finding]:
    name = os.uname()
    yield Finding(
        "kernel",
        None,
        f"{name.sysname} {name.release} on {name.machine}, "
        f"{len(os.sched_getaffinity(0))} CPUs for us",
    )


def _cpus() -> Iterator[Finding]:
    less, governors = cpus.slower(), cpus.governors()
    if less is not None:
        yield Finding("CPUs", None, f"{less}: who runs where is left to the kernel")
    set_by = f"is set by {' and '.join(governors)}" if governors else "cannot be set from here"
    follows = "; under sched_ext it follows what each is used" if "schedutil" in governors else ""
    yield Finding("CPUs", None, f"their clock {set_by}{follows}")


def _sched_ext() -> Iterator[Finding]:
    from sched_ctl.backends.scx.probe import features, harms, probe
    from sched_ctl.kernel import schedext

    obstacles = list(schedext.obstacles())
    for obstacle in obstacles:
        words, command = system.newer_kernel() if schedext.state() is None else (None, None)
        yield Finding("sched_ext", False, obstacle.because, words or obstacle.hint, command)
    if not obstacles:
        if (harm := harms()) is not None:
            yield Finding("sched_ext", False, harm, "load --backend scx takes it all the same")
        found = probe()
        yield Finding("sched_ext", found.can, found.because, found.hint)
        for name, words in features():
            yield Finding("sched_ext", None, f"{name}: {words}")


def _cgroups() -> Iterator[Finding]:
    mounts = [line.split() for line in filter(None, (_read("/proc/mounts") or "").split("\n"))]
    v1 = [m[1] for m in mounts if m[2] == "cgroup" and "cpu" in m[3].split(",")]
    v2 = [m[1] for m in mounts if m[2] == "cgroup2"]
    with_cpu = [path for path in v2 if "cpu" in (_read(f"{path}/cgroup.controllers") or "").split()]
    if with_cpu:
        yield Finding("cgroup", True, f"cgroup v2 has the cpu controller at {with_cpu[0]}")
    elif v1:
        beside = f"; cgroup v2 at {v2[0]} has no cpu" if v2 else ""
        yield Finding(
            "cgroup",
            True,
            f"cgroup v1 holds the cpu controller at {v1[0]}{beside}: shares work, by moving "
            "threads",
            "for v2, boot with systemd.unified_cgroup_hierarchy=1",
        )
    else:
        yield Finding(
            "cgroup",
            False,
            "no cgroup has the cpu controller: no shares between queries",
            "mount cgroup2, or boot without cgroup_disable=cpu",
        )
    if v1 or with_cpu:
        root = (v1 or with_cpu)[0]
        writable = os.access(root, os.W_OK)
        if not writable:
            yield Finding("cgroup", False, f"{root} is read-only for us", "run as root on the host")


def _nice() -> Iterator[Finding]:
    if _capable("SYS_NICE"):
        yield Finding("nice", True, "any nice value from -20 to 19")
        return
    soft, _ = resource.getrlimit(resource.RLIMIT_NICE)
    yield Finding(
        "nice",
        False,
        f"nice values can only be raised (limit {20 - soft})",
        "run as root, or with CAP_SYS_NICE",
    )


def _autogroup() -> Iterator[Finding]:
    value = _read("/proc/sys/kernel/sched_autogroup_enabled")
    if value == "1":
        yield Finding(
            "autogroup",
            False,
            "autogroup is on: nice alone ranks threads within one session, not engines of two",
            "start engines as services, use shares, or switch it off:",
            "sysctl kernel.sched_autogroup_enabled=0",
        )
    else:
        yield Finding("autogroup", True, "off" if value == "0" else "the kernel has none")


def _psi() -> Iterator[Finding]:
    found = psi.read(psi.path_of("cpu"))
    if found is None:
        words, command = system.boot_with("psi=1")
        yield Finding("PSI", False, "no pressure stall information", words, command)
        return
    share = found.some.avg10_share
    yield Finding("PSI", True, f"tasks waited for a CPU in {share:.1%} of the last 10 s")
    unified = [found.mount for found in cgroup.hierarchies() if found.version == 2]
    if unified and psi.read(psi.path_of("cpu", unified[0])) is not None:
        yield Finding("PSI", None, f"each cgroup below {unified[0]} tells its own pressure")
    else:
        yield Finding("PSI", None, "pressure of the machine only, not of each engine's cgroup")


def _schedstat() -> Iterator[Finding]:
    if probes.available():
        yield Finding("schedstat", True, "CPU time and run delay of each thread can be read")
    else:
        yield Finding(
            "schedstat",
            False,
            "no CPU time per thread: costs must come from the engine",
            "a kernel with CONFIG_SCHED_INFO has it",
        )


def _taskstats() -> Iterator[Finding]:
    obstacle = taskstats.obstacle()
    if obstacle is not None:
        todo = adding("probes") if "pyroute2" in obstacle else None
        what = f"memory-bound is told from PSI, disks from nothing: {obstacle}"
        yield Finding("taskstats", None, what, todo and "install it, in a checkout:", todo)
    elif taskstats.accounting() is False:
        yield Finding(
            "taskstats",
            None,
            "delay accounting is off: threads do not tell waits for disks and memory",
            "switch it on, then start the engines anew:",
            "sysctl kernel.task_delayacct=1",
        )
    else:
        words = "how long threads waited for disks and memory, of engines started since it is on"
        yield Finding("taskstats", True, words)


def _tracing() -> Iterator[Finding]:
    obstacle = tracing.obstacle()
    if obstacle is None:
        what = "exact waits, and who wakes whom (sched-ctl waits, load --trace, kernel: engines)"
        yield Finding("tracing", True, what)
    else:
        yield Finding("tracing", None, f"no exact waits, no graph of wake-ups: {obstacle}")


def _sockets() -> Iterator[Finding]:
    try:
        sockdiag.connections(os.getpid(), sockdiag.inodes(os.getpid()))
    except (OSError, sockdiag.Crowded) as error:
        yield Finding("sockets", False, f"cannot tell what waits before sources: {error}")
        return
    yield Finding("sockets", True, "what waits before sources, in their TCP connections")


def _sleeps() -> Iterator[Finding]:
    if not sleeping.told():
        yield Finding("sleeps", None, "the kernel tells where threads sleep by wait channel alone")
    elif not _capable("SYS_PTRACE"):
        what = "where threads of other users sleep by wait channel alone, of our own by system call"
        yield Finding("sleeps", None, what, "run as root, or with CAP_SYS_PTRACE")
    else:
        yield Finding("sleeps", True, "where threads sleep, by system call and wait channel")


def _privileges() -> Iterator[Finding]:
    missing = [name for name in CAPABILITIES if not _capable(name)]
    if os.geteuid() == 0 and not missing:
        yield Finding("privileges", True, "root with all capabilities that are used")
    else:
        who = "root" if os.geteuid() == 0 else f"uid {os.geteuid()}"
        yield Finding(
            "privileges",
            "SYS_NICE" not in missing,
            f"{who}, without {', '.join('CAP_' + name for name in missing)}",
            "run as root on the host, not in a container that drops capabilities",
        )


def _users() -> Iterator[Finding]:
    yield Finding(
        "users",
        None,
        f"engines of root and of system users (uid below {first_user()}) are ordered together, "
        "each other user's among themselves alone",
        "name further ones in the setting users, if what their engines say may count for all",
    )


def _meddlers() -> Iterator[Finding]:
    found = False
    for pid in procfs.pids():
        stat = procfs.stat(pid)
        if stat is not None and stat.name in MEDDLERS and pid != os.getpid():
            found = True
            yield Finding(
                "other tools",
                False,
                f"{stat.name} (pid {pid}) {MEDDLERS[stat.name]}: it may undo what we set",
                "stop it, or exclude the engine in its configuration",
            )
    if not found:
        yield Finding("other tools", True, "none that is known to fight over priorities")


def _backends() -> Iterator[Finding]:
    from sched_ctl.backends import ladder

    found = ladder.probe_all()
    on_ladder = {kind.name for kind in ladder.KINDS if kind.auto}
    taken = ladder.by_itself()
    for name, probe in found:
        mark = " (auto takes this one)" if name == taken else ""
        if name not in on_ladder:
            mark = " (only if it is named)"
        what = probe.because + mark
        yield Finding(f"backend {name}", probe.can, what, probe.hint, taken=name == taken)


TOPICS: dict[str, Callable[[], Iterator[Finding]]] = {
    "kernel": _kernel,
    "CPUs": _cpus,
    "sched_ext": _sched_ext,
    "cgroup": _cgroups,
    "nice": _nice,
    "autogroup": _autogroup,
    "PSI": _psi,
    "schedstat": _schedstat,
    "taskstats": _taskstats,
    "sockets": _sockets,
    "sleeps": _sleeps,
    "tracing": _tracing,
    "privileges": _privileges,
    "users": _users,
    "other tools": _meddlers,
    "backend": _backends,
}


def _capable(name: str) -> bool:
    found = procfs.field("/proc/self/status", "CapEff")
    return bool(int(found[0], 16) >> CAPABILITIES[name] & 1) if found else os.geteuid() == 0


def _read(path: str) -> str | None:
    try:
        return procfs.text(path).strip()
    except OSError:
        return None
