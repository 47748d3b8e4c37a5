"""What `sched-ctl status` shows: what runs, since when, what came of it; the inside on request."""

from collections.abc import Callable, Mapping
from typing import Any

from sched_ctl import show
from sched_ctl.cli import planned, targets
from sched_ctl.service.idle import idle

__all__ = ["inside", "summary"]

Answer = dict[str, Any]
MOST = 5  # problems and notes, where not all are asked for
MOST_EFFECTS = 30
SOURCES = {
    "counted": "engine",
    "reported": "engine's mean",
    "awake": "wake-ups",
    "little": "queues",
    "unknown": "",
}


def summary(answer: Answer, *, everything: bool) -> None:
    """A screen: policies, engines, queries and what came of it, problems."""
    who = "looking only, nothing is changed:" if answer["only_looks"] else "controller"
    show.text(
        f"{who} pid {answer['pid']}, up {show.duration(answer['uptime_s'])}, "
        f"{answer['cpu_share']:.2%} of a CPU, {answer['rss_bytes'] / 1e6:.0f} MB"
    )
    for rule in answer["policies"]:
        show.text(
            ("" if rule["called"] == rule["policy"] else f"{rule['called']}: ")
            + ("the OS's own order" if rule["own"] else f"{rule['policy']} by {rule['backend']}")
            + (f" ({rule['chosen'] or rule['phase']})" if rule["chosen"] or rule["phase"] else "")
            + f", for {show.duration(rule['for_s'])}"
        )
    for engine in answer["engines"]:
        show.text(_engine(engine))
    if (why := idle(answer)) is not None:
        show.text(why)
    most = None if everything else planned.MOST_QUERIES
    if answer["queries"]:
        planned.queries(answer["queries"], most, _brought(answer["effects"]))
    targets.table(answer["targets"])
    elastic = [f"{r['engine']} {r['query']}: {r['words']}" for r in answer["replicas"]]
    _lines("replicas", elastic, everything=everything)
    _lines("note", _notes(answer), everything=everything)
    _lines("problem", answer["problems"], everything=everything)


def _engine(engine: Mapping[str, Any]) -> str:
    found, queries = engine["threads"], len(engine["queries"])
    state = engine["state"]
    if engine["answered_s_ago"] is None:
        state += ", never answered"
    elif state != "ok":
        state += f", answered {show.duration(engine['answered_s_ago'])} ago"
    return (
        f"{engine['engine']}: {state}, {queries} {'query' if queries == 1 else 'queries'}, "
        f"{found} operator threads" + (f", in {engine['runs_in']}" if engine.get("runs_in") else "")
    )


def _brought(effects: list[dict[str, Any]]) -> dict[str, Any]:
    """Columns of what came of each query lately."""
    of = {(effect["engine"], effect["query"]): effect for effect in effects}

    def column(key: str, shown: Callable[[float], str]) -> Callable[[Mapping[str, Any]], str]:
        def told(row: Mapping[str, Any]) -> str:
            value = of.get((row["engine"], row["query"]), {}).get(key)
            return "" if value is None else shown(value)

        return told

    columns: dict[str, tuple[str, Callable[[float], str]]] = {
        ">in/s": ("tuples_in", show.number),
        ">mean ms": ("time_s", show.milliseconds),
        ">p50 ms": ("p50_s", show.milliseconds),
        ">p99 ms": ("p99_s", show.milliseconds),
    }
    known = {name: at for name, at in columns.items() if any(e[at[0]] is not None for e in effects)}
    return {name: column(*at) for name, at in known.items()}


def _notes(answer: Answer) -> list[str]:
    found = list(answer["notes"])
    for engine in answer["engines"]:
        found += [f"{engine['engine']}: {note}" for note in engine["notes"][:10]]
    return found


def _lines(kind: str, lines: list[str], *, everything: bool) -> None:
    shown = lines[: 50 if everything else MOST]
    for line in shown:
        show.text(f"{kind}: {line if everything else show.short(line, 240)}")
    if len(shown) < len(lines):
        show.text(f"and {len(lines) - len(shown)} more {kind}s: --all, --json")


def inside(answer: Answer) -> None:
    """How the controller does it: pressure, passes, engines' answers, backends, effects."""
    for where, stalls in (
        ("machine", answer["pressure"]["machine"]),
        *answer["pressure"]["engines"].items(),
    ):
        show.text(f"pressure: {where}: {_stalls(stalls)}")
    show.table(
        ("rule", "backend", ">period", ">passes", ">missed", ">threads", ">writes", ">pass ms"),
        (
            (
                rule["called"],
                rule["backend"],
                f"{rule['period_s']:g} s",
                rule["passes"],
                rule["missed"],
                rule["threads"],
                f"{rule['writes']} ({rule['repaired']} repaired)",
                show.number(sum(rule["stage_ms"].values())),
            )
            for rule in answer["policies"]
        ),
    )
    show.table(
        ("engine", ">pid", "state", ">answered", ">poll ms", ">operators", ">threads"),
        (
            (
                engine["engine"],
                engine["pid"],
                engine["state"],
                f"{engine['answered_s_ago']:.1f} s ago"
                if engine["answered_s_ago"] is not None
                else "never",
                show.number(engine["poll_ms"]),
                engine["operators"],
                engine["threads"],
            )
            for engine in answer["engines"]
        ),
    )
    if answer["effects"]:
        _effects(answer["effects"])
    for step in answer["not_taken"]:
        show.text(f"backend {step['backend']}: not taken: {step['because']}")


def _effects(effects: list[dict[str, Any]]) -> None:
    """What came of it, by query; the first ones."""

    def ms(seconds: float | None) -> str:
        return "" if seconds is None else f"{show.milliseconds(seconds)} ms"

    def share(part: float | None) -> str:
        return "" if part is None else f"{part:.1%}"

    show.table(
        ("query", ">in/s", ">out/s", ">time", ">±", "from", ">p50", ">p99", ">in target"),
        (
            (
                f"{effect['engine']} {effect['query']}",
                show.number(effect["tuples_in"]),
                show.number(effect["tuples_out"]),
                ms(effect["time_s"]),
                share(effect["error"]),
                SOURCES[effect["source"]],
                ms(effect["p50_s"]),
                ms(effect["p99_s"]),
                share(effect["within_target"]),
            )
            for effect in effects[:MOST_EFFECTS]
        ),
    )
    if len(effects) > MOST_EFFECTS:
        show.text(f"and {len(effects) - MOST_EFFECTS} more queries, see --json")


def _stalls(stalls: Mapping[str, Any]) -> str:
    """Words for the shares of the last 10 s: "cpu 12.3%, io 0.2% (full 0.1%)"."""
    parts = []
    for resource, stall in stalls.items():
        full = f" (full {stall['full']:.1%})" if stall["full"] else ""
        parts.append(f"{resource} {stall['some']:.1%}{full}")
    return ", ".join(parts) or "not told by this kernel"
