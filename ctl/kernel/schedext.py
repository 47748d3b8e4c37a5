"""sched_ext as the running kernel offers it: what stands in its way, what it says, its server.

Everything is found by looking (a file, a symbol, a type), never by asking for a version.
Documentation/scheduler/sched-ext.rst of the kernel.
"""

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sched_ctl.kernel import procfs
from sched_ctl.kernel.btf import VMLINUX, Btf, BtfError, Kind

__all__ = [
    "EXIT_WORDS",
    "RESTART",
    "Obstacle",
    "attached",
    "explain_error",
    "hotplug_sequence",
    "is_offline",
    "kernel_types",
    "obstacles",
    "server_files",
    "server_share",
    "state",
    "taken",
    "usable_types",
]

ROOT = Path("/sys/kernel/sched_ext")
SERVERS = Path("/sys/kernel/debug/sched/ext_server")
ISOLATED = Path("/sys/devices/system/cpu/isolated")  # CPUs that isolcpus= names, as "2-3"
# enum scx_exit_code: SCX_ECODE_ACT_RESTART, "not an error, load it again" (CPU hotplug)
RESTART = 1 << 48
# include/uapi/linux/capability.h
_CAPABILITIES = {"CAP_SYS_ADMIN": 21, "CAP_SYS_NICE": 23, "CAP_PERFMON": 38, "CAP_BPF": 39}

# enum scx_exit_kind without its prefix SCX_EXIT_
EXIT_WORDS = {
    "NONE": "it is attached",
    "DONE": "it is gone",
    "UNREG": "it was detached",
    "UNREG_BPF": "it detached itself",
    "UNREG_KERN": "the kernel detached it",
    "SYSRQ": "somebody pressed SysRq-S, which puts all threads back under the kernel's scheduler",
    "PARENT": "the scheduler above it ended",
    "ERROR": "the kernel found an error in it",
    "ERROR_BPF": "it reported an error itself",
    "ERROR_STALL": "a thread that could run was not given a CPU for too long",
}


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why no scheduler can be attached now, and what to do about it. transient: may pass."""

    because: str
    hint: str | None = None
    transient: bool = False


def state() -> str | None:
    """ "disabled", "enabled", "enabling" or "disabling"; None where the kernel has no sched_ext."""
    return _text(ROOT / "state")


def attached() -> str | None:
    """Name of the scheduler that is attached now, or None."""
    return _text(ROOT / "root" / "ops") if state() not in (None, "disabled") else None


def hotplug_sequence() -> int | None:
    """CPUs brought up or down so far; the kernel refuses a scheduler with an older number."""
    text = _text(ROOT / "hotplug_seq")
    return int(text) if text else None


@cache
def kernel_types() -> Btf:
    """The running kernel's types; read once, until a scheduler is loaded."""
    return Btf.of_kernel()


def obstacles() -> Iterator[Obstacle]:
    """Everything known to stand in the way, most fundamental first. Loads nothing."""
    if state() is None:
        yield Obstacle(
            "the kernel has no sched_ext (SCHED_CLASS_EXT)",
            "Debian's kernels have it from 6.16 on (trixie-backports)",
        )
        return
    if _is_realtime():
        yield Obstacle(
            "this is a PREEMPT_RT kernel, which refuses every sched_ext scheduler",
            "boot a kernel without PREEMPT_RT",
        )
    if (obstacle := _isolated()) is not None:
        yield obstacle
    if not VMLINUX.exists():
        yield Obstacle(
            "the kernel does not publish its types (CONFIG_DEBUG_INFO_BTF)",
            "boot a kernel that has /sys/kernel/btf/vmlinux",
        )
        return
    missing = missing_capabilities()
    if missing:
        yield Obstacle(f"not permitted: needs {', '.join(missing)}", "run it as root")
    else:
        try:
            defect = usable_types(kernel_types())
        except (BtfError, OSError) as error:
            defect = Obstacle(f"the kernel's types cannot be read: {error}")
        if defect is not None:
            yield defect
    if (obstacle := taken()) is not None:
        yield obstacle


def _isolated() -> Obstacle | None:
    """The kernel takes no sched_ext scheduler (EINVAL) where CPUs are out of load balancing."""
    cpus = _text(ISOLATED)
    if not cpus:
        return None
    return Obstacle(
        f"CPUs are isolated by isolcpus= ({cpus}), and then the kernel refuses every sched_ext "
        "scheduler",
        "boot without isolcpus=",
    )


def taken() -> Obstacle | None:
    """Which scheduler is attached now, and what to do about it; None if none is."""
    other = attached()
    return None if other is None else _taken(other)


def _taken(other: str | None) -> Obstacle:
    """Another scheduler is there, perhaps one of ours."""
    if other == "sched_ctl":
        because = "ours is attached (sched_ctl), by a controller that runs"
        hint = "sched-ctl status shows it, sched-ctl unload ends it"
    else:
        because = f"another scheduler is attached: {other or 'it was gone when we looked'}"
        hint = "stop it first, for example: systemctl stop scx (or scx_loader)"
        if _delegates():
            because += ", which lets others run below it (sub-schedulers)"
            hint += "; ours does not run below another one"
    return Obstacle(because, hint, transient=True)


def _delegates() -> bool:
    """Whether the attached scheduler has ops.sub_attach: only then there is this folder, since
    Linux 7.1 (CONFIG_EXT_SUB_SCHED, scx_alloc_and_add_sched in kernel/sched/ext.c).
    """
    return (ROOT / "root" / "sub").is_dir()


def usable_types(kernel: Btf) -> Obstacle | None:
    """What in this kernel's BTF makes every scheduler unloadable, if anything.

    Kernel functions with implicit arguments must appear twice, without them and as NAME_impl. In
    some builds (Debian's 7.1.13, 7.2.9, 7.2.12) only a form with the argument is there, and the
    verifier refuses each call, whatever the program declares. 7.2.13 and 7.3.4 have it right.
    """
    if kernel.find("sched_ext_ops", Kind.STRUCT) is None:
        return Obstacle("the kernel's types have no struct sched_ext_ops")
    parameters = kernel.parameters("scx_bpf_create_dsq")
    if parameters is None:
        return Obstacle("the kernel has no function scx_bpf_create_dsq for BPF programs")
    if parameters[-1] == "aux" and kernel.find("scx_bpf_create_dsq_impl", Kind.FUNC) is None:
        return Obstacle(
            f"the types that kernel {os.uname().release} publishes (BTF) are defective: it refuses "
            "every sched_ext program (scx_bpf_create_dsq has an argument that no program can give)",
            "boot another kernel: 6.16, 6.18, 7.2.13 and 7.3 are known to work",
        )
    return None


def missing_capabilities() -> list[str]:
    """Capabilities that loading and adopting need and this process lacks."""
    found = procfs.field("/proc/self/status", "CapEff")
    effective = int(found[0], 16) if found else 0
    needed = dict(_CAPABILITIES)
    if not effective >> needed.pop("CAP_SYS_ADMIN") & 1:
        return [name for name, bit in needed.items() if not effective >> bit & 1]
    # Root of old: stands for the two that were split off from it.
    return [] if effective >> needed["CAP_SYS_NICE"] & 1 else ["CAP_SYS_NICE"]


def explain_error(error: OSError, step: str) -> Obstacle:
    """A failed load or attach, in words. step: "load" or "attach"."""
    number = error.errno or 0
    lockdown = _text(Path("/sys/kernel/security/lockdown")) or ""
    if "[confidentiality]" in lockdown or ("[integrity]" in lockdown and number == errno.EPERM):
        return Obstacle(
            f"the kernel is locked down ({lockdown}), which forbids this BPF program",
            "Secure Boot sets this; see kernel_lockdown(7)",
        )
    if number == errno.EBUSY:
        return _taken(attached())
    if number in (errno.EPERM, errno.EACCES) and missing_capabilities():
        return Obstacle(
            f"not permitted to {step} it: needs {', '.join(missing_capabilities())}",
            "run it as root",
        )
    if number == errno.EINVAL and step == "attach" and (obstacle := _isolated()) is not None:
        return obstacle
    if number == errno.EOPNOTSUPP and step == "attach":
        return Obstacle(
            "the kernel refuses to attach a sched_ext scheduler (EOPNOTSUPP)",
            "PREEMPT_RT kernels do",
        )
    if step == "load":
        return Obstacle(
            f"the kernel refused the program: {error.strerror}",
            "--debug shows what libbpf and the verifier said; please report it with `uname -r`",
        )
    return Obstacle(f"cannot {step} it: {error.strerror}", "--debug shows what libbpf said")


# -- the deadline server of SCHED_EXT ---------------------------------------------------------


def server_files() -> list[Path]:
    """A folder per CPU with `runtime` and `period` (ns); empty where the kernel has no server.

    The server gives SCHED_EXT threads this share of a CPU when the fair class, which ranks above
    them, would take all of it. In debugfs; since Linux 7.0.
    """
    return sorted(SERVERS.glob("cpu*"), key=lambda path: int(path.name.removeprefix("cpu") or 0))


def server_share() -> float | None:
    """The share of each CPU that the server guarantees, or None where there is none."""
    folders = server_files()
    if not folders:
        return None
    runtime, period = (int((folders[0] / name).read_text()) for name in ("runtime", "period"))
    return runtime / period if period else 0.0


def is_offline(cpu: str) -> bool:
    """cpu: as "cpu1". The kernel refuses changes to an offline CPU's server (EBUSY)."""
    return _text(Path("/sys/devices/system/cpu") / cpu / "online") == "0"


def _is_realtime() -> bool:
    return _text(Path("/sys/kernel/realtime")) == "1" or "PREEMPT_RT" in os.uname().version


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
