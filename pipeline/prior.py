"""What a fleet found out about policies, as a configuration that any node can have: `[[prior]]`.

`auto` of a node begins its race with what suited machines like it. One file is for all nodes, as
each section names its kind of machine. Names come out of recorded files, so whoever writes those
may write anything: what is no plain name has no section, and neither has a policy that is none,
with which no node would start.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sched_ctl.errors import UserError
from sched_ctl.pipeline.compare import OS, Compared
from sched_ctl.pipeline.rollout import JUDGED, judged
from sched_ctl.plugins import registry

__all__ = ["MEASURED", "Prior", "measured", "text", "write"]

MEASURED = "55-fleet-compare.toml"  # whose sections go before what was simulated
MOST = 1000  # sections
LONGEST = 200  # characters of a name
SPECIAL = frozenset("*?[!")  # of patterns


@dataclass(frozen=True)
class Prior:
    """machine, query: None = any. why: for whoever reads the file."""

    policy: str
    machine: str | None
    query: str | None
    why: str


def measured(found: Mapping[tuple[str, str], Sequence[Compared]]) -> list[Prior]:
    """What nodes recorded, by (kind of machine, query): the policy that was better than the
    system's own there, by the most; the system's own where all that was tried was worse."""
    made = []
    for (machine, query), told in found.items():
        stages = {one.policy: judged(told, one.policy)[0] for one in told}
        better = [name for name, stage in stages.items() if stage == "rest"]
        if better:
            best = min(better, key=lambda name: _judged_by(told, name).value)
            one = _judged_by(told, best)
            why = (
                f"Measured on {one.nodes} nodes: {one.figure} {one.value:.3g} of the system's own."
            )
            made.append(Prior(best, machine, query, why))
        elif set(stages.values()) == {"back"}:
            made.append(Prior(OS, machine, query, f"Measured: {', '.join(stages)} worse."))
    return made


def _judged_by(told: Sequence[Compared], policy: str) -> Compared:
    mine = {one.figure: one for one in told if one.policy == policy}
    return next(mine[figure] for figure in JUDGED if figure in mine)


def text(priors: Sequence[Prior]) -> str:
    """As a drop-in; those with a query first, as the first that fits counts."""
    parts = ["# What the fleet found: auto begins its race so, and judges by itself.\n"]
    known = {OS, *registry.policies()}
    plain = [
        p for p in priors if p.policy in known and _plain(p.machine) and _plain(p.query, SPECIAL)
    ]
    for prior in sorted(plain, key=lambda p: p.query is None)[:MOST]:
        lines = [f"# {prior.why}" if _plain(prior.why) else "#", "[[prior]]"]
        lines += [f"policy = {_quoted(prior.policy)}"]
        if prior.machine is not None:
            lines += [f"machine = {_quoted(prior.machine)}"]
        if prior.query is not None:
            lines += [f"queries = [{_quoted(prior.query)}]"]
        parts.append("\n".join([*lines, ""]))
    return "\n".join(parts)


def _quoted(name: str) -> str:
    """What can be printed is written alike in JSON and TOML."""
    return json.dumps(name, ensure_ascii=False)


def _plain(name: str | None, without: frozenset[str] = frozenset()) -> bool:
    if name is None:
        return True
    return 0 < len(name) <= LONGEST and name.isprintable() and not without & set(name)


def write(folder: Path, name: str, priors: Sequence[Prior]) -> str:
    """The file; none where there is nothing to say, also not an earlier one, which nodes would
    still go by. Returns what was done, in words. Raises UserError."""
    path = folder / name
    try:
        if priors:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(text(priors), encoding="utf-8")
            return f"wrote {path}"
        path.unlink()
    except FileNotFoundError:
        return f"did not write {path}: the data do not tell"
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    return f"removed {path}: the data do not tell any more"
