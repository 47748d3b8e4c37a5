"""Why there is nothing to show or to gain, in one true sentence."""

import os
from collections.abc import Callable
from typing import Any

__all__ = ["idle", "nothing", "unheard"]

CALM = 0.01  # of the last 10 s in which some thread waited for a CPU: nothing waits


def nothing(status: dict[str, Any]) -> str:
    """Why nothing is ordered. status: as the controller tells it, `service.views.status`."""
    engines = status["engines"]
    if not engines:
        who = ", ".join(status.get("suspected") or ())
        if os.geteuid() != 0:
            what = f"no engine answers: {who}" if who else "no engine is found"
            return f"{what}: run this as root, engines of other users may be hidden"
        if who:
            return f"no engine answers: {who}: it may be starting, or lack CPU time"
        return "no engine is found yet: sched-ctl engines looks for them, and says what it misses"
    answering = [engine for engine in engines if engine["state"] == "ok"]
    if not answering:
        if all(engine["state"] == "new" for engine in engines):
            names = ", ".join(engine["engine"] for engine in engines[:5])
            known = [engine["problem"] for engine in engines if engine.get("problem")]
            if known and "did not answer" not in known[0]:
                return f"{names} has not answered yet: {known[0]}; it is asked again"
            why = "".join(f"{problem}; " for problem in known[:1])
            return f"{names} has not answered yet: {why}it is asked again, and may lack CPU time"
        named = ", ".join(f"{engine['engine']} ({engine['state']})" for engine in engines[:5])
        return f"no engine answers: {named}"
    idle = [engine["engine"] for engine in answering if not engine["queries"]]
    if len(idle) == len(answering):
        return f"{', '.join(idle[:5])} answers, and runs no query: submit one"
    threads = sum(engine["threads"] for engine in answering)
    if not threads:
        return "no thread of an operator is known: sched-ctl engines says why"
    return "too early to tell: ask again in some seconds"


def unheard(status: dict[str, Any], covered: Callable[[str], bool]) -> str | None:
    """Which engines an order is without, as they have not answered, nor said why; None: none.

    covered: whether a policy may select anything in the engine.
    """
    new = [e["engine"] for e in status["engines"] if e["state"] == "new" and not e["problem"]]
    late = [name for name in new if covered(name)]
    if not late:
        return None
    names = ", ".join(late[:5]) + (f" and {len(late) - 5} more" if len(late) > 5 else "")
    has, are = ("has", "is") if len(late) == 1 else ("have", "are")
    return f"{names} {has} not answered yet, and {are} not in this order: try again"


def idle(status: dict[str, Any]) -> str | None:
    """Why an order would change nothing now; None where it may."""
    runs = any(engine["state"] == "ok" and engine["queries"] for engine in status["engines"])
    own = [rule for rule in status["policies"] if rule["own"]]
    if runs and own:
        whose = "engine" if own[0]["backend"] == "pool" else "OS"
        return f"the {whose}'s own order is in force: {own[0]['phase']}"
    if not status["queries"]:
        return nothing(status)
    if status.get("only_looks"):
        return "nothing is enforced: this controller only looks"
    stalls = status["pressure"]["machine"].get("cpu")
    if stalls is not None and stalls["some"] < CALM:
        return (
            f"nothing waits for a CPU (in {stalls['some']:.1%} of the last 10 s): "
            "an order changes nothing now"
        )
    unordered = [row for row in status["queries"] if row["goes"] == "as under the OS"]
    if len(unordered) < len(status["queries"]):
        return None
    users = {engine["user"] for engine in status["engines"] if engine["queries"]}
    if len(users) > 1 and all(row["why"] == "a single query" for row in unordered):
        return (
            f"engines of {', '.join(sorted(map(str, users))[:5])} are ordered apart, and each has "
            "a single query: the setting users puts them together"
        )
    why = dict.fromkeys(row["why"] for row in unordered)
    return f"the order is the OS's: {'; '.join(why)}"
