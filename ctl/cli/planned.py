"""What `sched-ctl plan` shows: the order by query, by thread on request, and what would change."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sched_ctl import show

__all__ = ["changes", "queries", "show_plan", "show_replicas", "show_threads", "urgency_in_words"]

Row = Mapping[str, Any]
MOST_WANTING = 3  # operators that are told of
MOST_QUERIES = 12  # on a terminal, where no more are asked for: all of it has 24 lines


def show_plan(rule: Row, most: int | None = MOST_QUERIES) -> None:
    """By query, with the values that its threads would get."""
    show.text(f"{rule['name']}: {_by(rule)}" + (f" ({rule['chosen']})" if rule["chosen"] else ""))
    if not rule["queries"]:
        return
    names = list(dict.fromkeys(name for row in rule["threads"] for name in row["sets"]))
    values = {name: _values(rule["threads"], name) for name in names}
    columns = {f">{name}": told for name, told in values.items()}
    queries(rule["queries"], most, {">threads": lambda row: row["threads"]} | columns)
    helpers = len(rule["threads"]) - sum(row["threads"] for row in rule["queries"])
    if helpers > 0:
        show.text(f"and {helpers} helper threads of no operator: --threads shows each")


def show_replicas(wanting: Sequence[Row]) -> None:
    """Which operators need more replicas, which no order brings; too many cost little."""
    few = [row for row in wanting if row["needed"] > row["replicas"]]
    for row in few[:MOST_WANTING]:
        show.text(f"{row['query']}/{row['operator']}: replicas: {row['says']}")
    if few:
        more = f"{len(few) - MOST_WANTING} more; " if len(few) > MOST_WANTING else ""
        show.text(f"  {more}look for longer, and see what it would cost: sched-ctl scale")


def queries(
    rows: Sequence[Row], most: int | None, more: Mapping[str, Callable[[Row], object]]
) -> None:
    """A table: the query, how it goes and why, and further columns."""
    several = len({row["engine"] for row in rows}) > 1
    shown = rows if most is None or not show.is_narrow() else rows[:most]
    show.table(
        ("query", "goes", "why", *more),
        (
            (
                show.short(f"{row['engine']} {row['query']}" if several else row["query"], 26),
                row["goes"],
                show.short(row["why"], 34),
                *(told(row) for told in more.values()),
            )
            for row in shown
        ),
    )
    if len(shown) < len(rows):
        show.text(f"and {len(rows) - len(shown)} more queries: --all shows them")


def _values(threads: Sequence[Row], name: str) -> Callable[[Row], str]:
    """What the threads of a query would get: "3", or "-2 to 3"."""
    found: dict[tuple[str, str], list[Any]] = {}
    for row in threads:
        value = row["sets"].get(name)
        if row["query"] is not None and value is not None:
            found.setdefault((row["engine"], row["query"]), []).append(value)

    def told(query: Row) -> str:
        values = found.get((query["engine"], query["query"]), [])
        if not values:
            return ""
        low, high = min(values), max(values)
        return f"{low}" if low == high else f"{low} to {high}"

    return told


def _by(rule: Row) -> str:
    if rule.get("own"):
        return f"the OS's own order ({rule['phase']})"
    return f"{rule['policy']} by {rule['backend']}"


def changes(plans: Sequence[Row], running: Row | str | None) -> str:
    """What `load` would change of what is in force now. running: a controller's status, or what is
    so without one, in words.
    """
    if running is None:
        return "nothing is in force: sched-ctl load would apply it"
    if isinstance(running, str):
        return running
    before = {rule["name"]: rule for rule in running["policies"]}
    told = "; ".join(f"{rule['name']}: {_by(rule)}" for rule in running["policies"])
    head = f"in force, by the controller with pid {running['pid']}: {told}. "
    raced = {name for name, rule in before.items() if rule.get("race")}
    found = [
        f"{rule['name']}: {_by(rule)}"
        for rule in plans
        if rule["name"] not in before
        or (rule["name"] not in raced and _by(before[rule["name"]]) != _by(rule))
    ]
    moves = [
        row["sets"]["nice"] - row["now"]["nice"]
        for rule in plans
        for row in rule["threads"]
        if row["now"]
    ]
    others = sum(map(bool, moves))
    if raced:
        head += f"A race decides of {', '.join(sorted(raced))}, as it would with load. "
    if found:
        head += f"This would be instead: {', '.join(found)}. "
    if others and not found and len(set(moves)) == 1:
        return head + f"The order would be the same, {abs(moves[0])} nice levels from what is now."
    if others:
        return head + f"{others} of {len(moves)} threads would have another nice value."
    return head + ("" if found else "Nothing would change.")


def urgency_in_words(thread: Row) -> list[str]:
    """How urgent a thread is now, and how that grows with what waits."""
    urgency, age, queue = thread["urgency"], thread["head_age_s"], thread["queue_size"]
    parts = []
    if urgency["static"] is None:
        parts.append("not known")
    elif urgency["static"] or not (urgency["per_second"] or urgency["per_tuple"]):
        parts.append(f"{show.number(urgency['static'])} whatever waits")
    if urgency["per_second"]:
        parts.append(
            f"{show.number(urgency['per_second'])} for each second that its first tuple has waited"
        )
    if urgency["per_tuple"]:
        parts.append(f"{show.number(urgency['per_tuple'])} for each tuple that waits for it")
    rank = urgency["rank"]
    ranked = f", in rank {show.number(rank)}, which counts first" if rank else ""
    first = "" if age is None else f", the first for {show.number(age)} s"
    return [
        f"  urgency    {' and '.join(parts)}{ranked}",
        f"  now        {show.number(thread['evaluated'])}: {show.number(queue)} tuples wait{first}",
    ]


def show_threads(rule: Row) -> None:
    """A row a thread."""
    if not rule["threads"]:
        return
    threads = sorted(rule["threads"], key=_least_urgent_last)
    sets = list(dict.fromkeys(name for row in threads for name in row["sets"]))
    columns: dict[str, Callable[[Row], object]] = {
        ">tid": lambda row: row["tid"],
        "operator": _whose,
        "group": lambda row: row["group"] and f"{_here(rule, row['group'])} ({row['share']:g})",
        ">queue": lambda row: show.number(row["queue_size"]),
        ">age s": lambda row: show.number(row["head_age_s"]),
        ">urgency": lambda row: show.number(row["evaluated"]),
        ">place": lambda row: show.number(row["normalised"], 2),
        "backend": lambda row: row["backend"],
    } | {f">{name}": lambda row, name=name: row["sets"].get(name) for name in sets}
    if not any(row["group"] for row in threads):
        del columns["group"]
    if sets:  # which say it
        del columns[">place"]
    if len({row["backend"] for row in threads}) == 1:
        del columns["backend"]
    show.table(tuple(columns), ([told(row) for told in columns.values()] for row in threads))


def _here(rule: Row, group: str) -> str:
    """The name of a group without its engine's, where there is one engine alone."""
    return group.removeprefix(f"{rule['engines'][0]}/") if len(rule["engines"]) == 1 else group


def _whose(row: Row) -> str:
    """The operator, and the thread's name where that says something else."""
    operator, name = row["operator"], row["name"]
    return operator if not name or name in operator else f"{operator} ({name})"


def _least_urgent_last(row: Row) -> float:
    """Neutral rows, whose urgency is unknown, lie in the middle."""
    return -0.5 if row["normalised"] is None else -float(row["normalised"])
