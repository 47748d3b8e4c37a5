"""The ladder of backends: `auto` takes the best one that works, and says why not a better one.

Options come by backend name; who is not among them has its defaults.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sched_ctl.backends import Backend, Probe, pool
from sched_ctl.backends.cgroups import groups, quota, v1, v2
from sched_ctl.backends.scx import probe as scx_probe
from sched_ctl.backends.threads import nice, realtime, slices
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.errors import UserError
from sched_ctl.model.options import BackendOptions, Options, by_name
from sched_ctl.model.schedule import Schedule

__all__ = [
    "KINDS",
    "Kind",
    "by_itself",
    "choose",
    "expected",
    "planned",
    "probe_all",
]

DEFAULTS = by_name(BackendOptions())
Had = Mapping[tuple[int, int], int]


@dataclass(frozen=True)
class Kind:
    """A backend: how to see whether it works here, and how to make one.

    auto: False for those that are taken only when they are named. harms: why `auto` leaves it out
    on this machine although it works, in words; None where it does not. planned: what it would set
    for the threads of a schedule, by what it is called, after `had` (see there); None where that
    cannot be told beforehand.
    """

    name: str
    probe: Callable[[], Probe]
    make: Callable[[Journal, Any], Backend]
    auto: bool = True
    harms: Callable[[], str | None] = lambda: None
    planned: Callable[[Schedule, Any, Had], Mapping[str, Sequence[object]]] | None = None


def _scx(journal: Journal, options: Any) -> Backend:
    # Who runs by nice values and cgroups pays nothing for it.
    from sched_ctl.backends.scx.backend import Scx

    return Scx(journal, options)


_in_v1, _in_v2 = (partial(groups.planned, version=v, with_nice=False) for v in (1, 2))
_in_v1_nice, _in_v2_nice = (partial(groups.planned, version=v, with_nice=True) for v in (1, 2))

KINDS: tuple[Kind, ...] = (
    Kind("scx", scx_probe.probe, _scx, harms=scx_probe.harms),
    Kind("cgroup2+nice", v2.probe, v2.Cgroup2Nice, planned=_in_v2_nice),
    Kind("cgroup1+nice", v1.probe, v1.Cgroup1Nice, planned=_in_v1_nice),
    Kind("nice", nice.probe, nice.Nice, planned=nice.planned),
    Kind("cgroup2", v2.probe, v2.Cgroup2, auto=False, planned=_in_v2),
    Kind("cgroup1", v1.probe, v1.Cgroup1, auto=False, planned=_in_v1),
    Kind("slice", slices.probe, slices.Slices, auto=False),
    Kind("realtime", realtime.probe, realtime.RealTime, auto=False),
    Kind("quota", quota.probe, quota.Quota, auto=False),
    Kind("pool", pool.probe, pool.Pool, auto=False),
)


def probe_all() -> list[tuple[str, Probe]]:
    """What works here and why not, best first. Changes nothing."""
    return [(kind.name, _probe(kind)) for kind in KINDS]


def by_itself() -> str | None:
    """The backend that `auto` takes here; None if there is none. Changes nothing."""
    return next((kind.name for kind in KINDS if kind.auto and _fit(kind).can), None)


def choose(
    name: str, options: Mapping[str, Options], journal: Journal, failed: Collection[str] = ()
) -> tuple[Backend, list[tuple[str, Probe]]]:
    """The backend of that name, or the best for "auto"; and the better ones that do not work.

    options: by backend name; who is not in it has its defaults. failed: backends that "auto" must
    not take again. Raises UserError.
    """
    if name != "auto":
        return _made(_usable(name), options, journal), []
    steps: list[tuple[str, Probe]] = []
    for kind in KINDS:
        if not kind.auto or kind.name in failed:
            continue
        probe = _fit(kind)
        if probe.can:
            return _made(kind, options, journal), steps
        steps.append((kind.name, probe))
    why = [f"{name}: {probe.because}" for name, probe in steps]
    why += [f"{name}: failed while it ran" for name in failed]
    raise UserError(
        f"no backend works on this machine: {'; '.join(why)}",
        "sched-ctl check says what would help",
    )


def expected(name: str) -> str:
    """The backend that `choose` would take now; "none" for "auto" if there is none.

    Makes nothing. Raises UserError, as `choose` does, where the one that is named does not work.
    """
    if name != "auto":
        _usable(name)
        return name
    return by_itself() or "none"


def planned(
    name: str, options: Mapping[str, Options], schedule: Schedule, had: Had = nice.NOTHING_HAD
) -> Mapping[str, Sequence[object]]:
    """What a backend would set for each thread of the schedule, by what it is called.

    had: nice values that threads had before a controller changed them, by tid and start time.
    Empty where that cannot be told beforehand.
    """
    kind = next((kind for kind in KINDS if kind.name == name), None)
    if kind is None or kind.planned is None:
        return {}
    return kind.planned(schedule, _options(kind, options), had)


def _usable(name: str) -> Kind:
    kind = next((kind for kind in KINDS if kind.name == name), None)
    if kind is None:
        names = ", ".join(kind.name for kind in KINDS)
        raise UserError(f"there is no backend {name!r}", f"it is one of: auto, {names}")
    probe = _probe(kind)
    if not probe.can:
        raise UserError(f"backend {name} does not work here: {probe.because}", probe.hint)
    return kind


def _probe(kind: Kind) -> Probe:
    try:
        return kind.probe()
    except UserError as error:
        return Probe(False, error.message, error.hint)
    except Exception as error:  # a strange machine must not keep the next backend from its turn
        return Probe(False, f"looking at it failed: {type(error).__name__}: {error}")


def _fit(kind: Kind) -> Probe:
    """Whether `auto` may take it: it works, and harms nobody on such a machine."""
    probe = _probe(kind)
    harm = kind.harms() if probe.can else None
    return probe if harm is None else Probe(False, harm, f"--backend {kind.name} takes it")


def _made(kind: Kind, options: Mapping[str, Options], journal: Journal) -> Backend:
    return kind.make(journal, _options(kind, options))


def _options(kind: Kind, options: Mapping[str, Options]) -> Options:
    return options.get(kind.name, DEFAULTS[kind.name])
