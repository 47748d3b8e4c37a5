"""Whether this machine's kernel can run our scheduler, in which mode, and what it offers."""

from sched_ctl.backends import Probe
from sched_ctl.kernel import cgroup, cpus, schedext
from sched_ctl.kernel.libbpf import BpfError, library
from sched_ctl.kernel.scheduler import OBJECT
from sched_ctl.model.options import ScxOptions

__all__ = ["features", "harms", "mode_of", "probe"]

# Functions of the kernel that the program does without, and what for.
_OPTIONAL = {
    "scx_bpf_dsq_peek": "look at the head of a queue without taking its lock",
    "scx_bpf_now": "a clock that costs no system counter read",
}


def probe() -> Probe:
    """Whether a scheduler could be attached now. Loads nothing."""
    obstacle = next(schedext.obstacles(), None)
    if obstacle is not None:
        return Probe(False, obstacle.because, obstacle.hint)
    if not OBJECT.exists():
        return Probe(
            False,
            f"the BPF program was not built ({OBJECT.name} is missing)",
            "make -C bpf (needs clang), or install a package that has it",
        )
    try:
        lib = library()
    except BpfError as error:
        return Probe(False, str(error.strerror), "apt install libbpf1, or pip install pylibbpf")
    return Probe(True, f"{mode_of(ScxOptions())} mode, by {lib.origin}")


def harms() -> str | None:
    """Why the kernel's own scheduler is better for this machine, in words; None where it is not."""
    less = cpus.slower()
    return less and f"{less}, and the order of sched_ext does not go by that"


def features() -> list[tuple[str, str]]:
    """What of sched_ext this kernel has, name and words, for `sched-ctl check`."""
    if schedext.state() is None:
        return []
    share = schedext.server_share()
    found = [
        (
            "deadline server",
            "none: full mode, in which all normal threads are ours"
            if share is None
            else f"{share:.0%} of each CPU: partial mode, in which only operators are ours",
        )
    ]
    found.append(
        (
            "real-time threads",
            "in full mode one that never sleeps stops all ordinary threads of its CPU, until, "
            "after 30 s, the kernel ends the scheduler; in partial mode it stops operators alone"
            if share is None
            else f"one that never sleeps leaves {share:.0%} of its CPU to ours",
        )
    )
    held = "hold" if cgroup.in_use() else "would hold; none has the cpu controller now"
    found.append(("cgroups", f"in full mode, weights and limits of cgroups {held}"))
    kernel = schedext.kernel_types()
    for function, use in _OPTIONAL.items():
        has = kernel.parameters(function) is not None
        found.append((function, use if has else f"missing; without: {use}"))
    return found


def mode_of(options: ScxOptions) -> str:
    """ "partial" or "full", as the options or the kernel say."""
    if options.mode != "auto":
        return options.mode
    # The fair class ranks above SCHED_EXT: in partial mode nobody can share fairly with it.
    first = options.precedence == "engine"
    return "partial" if first and schedext.server_files() else "full"
