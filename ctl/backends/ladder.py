"""The ladder of backends: `auto` takes the best one that works, and says why not a better one.

Options come by backend name, as in the configuration file.
"""

import importlib.util
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from sched_ctl.backends import Backend, Probe, cgroup1, cgroup2, nice, pool
from sched_ctl.backends.groups import GroupOptions
from sched_ctl.backends.journal import Journal
from sched_ctl.errors import UserError

__all__ = ["KINDS", "Kind", "choose", "expected", "probe_all"]

Options = Mapping[str, object]


@dataclass(frozen=True)
class Kind:
    """A backend: how to see whether it works here, its options, and how to make one.

    auto: False for those that are taken only when they are named.
    """

    name: str
    probe: Callable[[], Probe]
    options: type[msgspec.Struct]
    make: Callable[[Journal, Any], Backend]
    auto: bool = True


def _scx() -> list[Kind]:
    """The sched_ext backend, if this build has it."""
    if importlib.util.find_spec("sched_ctl.backends.scx") is None:
        return []
    scx: Any = importlib.import_module("sched_ctl.backends.scx")
    return [Kind("scx", scx.probe, scx.ScxOptions, scx.Scx)]


KINDS: tuple[Kind, ...] = (
    *_scx(),
    Kind("cgroup2+nice", cgroup2.probe, cgroup2.Cgroup2Options, cgroup2.Cgroup2Nice),
    Kind("cgroup1+nice", cgroup1.probe, GroupOptions, cgroup1.Cgroup1Nice),
    Kind("nice", nice.probe, nice.NiceOptions, nice.Nice),
    Kind("cgroup2", cgroup2.probe, cgroup2.Cgroup2Options, cgroup2.Cgroup2, auto=False),
    Kind("cgroup1", cgroup1.probe, GroupOptions, cgroup1.Cgroup1, auto=False),
    Kind("pool", pool.probe, pool.PoolOptions, pool.Pool, auto=False),
)


def probe_all() -> list[tuple[str, Probe]]:
    """What works here and why not, best first. Changes nothing."""
    return [(kind.name, _probe(kind)) for kind in KINDS]


def choose(
    name: str, options: Options, journal: Journal, failed: Collection[str] = ()
) -> tuple[Backend, list[tuple[str, Probe]]]:
    """The backend of that name, or the best for "auto"; and the better ones that do not work.

    options: of the backend; for "auto" a table of options by backend name. failed: backends that
    "auto" must not take again. Raises UserError.
    """
    if name != "auto":
        kind = next((kind for kind in KINDS if kind.name == name), None)
        if kind is None:
            names = ", ".join(kind.name for kind in KINDS)
            raise UserError(f"there is no backend {name!r}", f"it is one of: auto, {names}")
        probe = _probe(kind)
        if not probe.can:
            raise UserError(f"backend {name} does not work here: {probe.because}", probe.hint)
        return kind.make(journal, _options(kind, options)), []
    steps: list[tuple[str, Probe]] = []
    for kind in KINDS:
        if not kind.auto or kind.name in failed:
            continue
        probe = _probe(kind)
        if probe.can:
            own = options.get(kind.name, {})
            if not isinstance(own, Mapping):
                raise UserError(f"options of backend {kind.name} must be a table, not {own!r}")
            return kind.make(journal, _options(kind, own)), steps
        steps.append((kind.name, probe))
    why = [f"{name}: {probe.because}" for name, probe in steps]
    why += [f"{name}: failed while it ran" for name in failed]
    raise UserError(
        f"no backend works on this machine: {'; '.join(why)}",
        "sched-ctl check says what would help",
    )


def expected(name: str) -> str:
    """The backend that `choose` would take now; "none" if there is none. Makes nothing."""
    if name != "auto":
        return name
    return next((kind.name for kind in KINDS if kind.auto and _probe(kind).can), "none")


def _probe(kind: Kind) -> Probe:
    try:
        return kind.probe()
    except UserError as error:
        return Probe(False, error.message, error.hint)
    except Exception as error:  # a strange machine must not keep the next backend from its turn
        return Probe(False, f"looking at it failed: {type(error).__name__}: {error}")


def _options(kind: Kind, options: Options) -> msgspec.Struct:
    try:
        return msgspec.convert(dict(options), kind.options)
    except msgspec.ValidationError as error:
        raise UserError(
            f"options of backend {kind.name}: {error}", "sched-ctl config shows what there is"
        ) from None
