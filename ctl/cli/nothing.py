"""Why there is nothing to show, in one true sentence."""

from typing import Any

__all__ = ["nothing"]


def nothing(status: dict[str, Any]) -> str:
    """status: as the controller tells it, `service.views.status`."""
    engines = status["engines"]
    if not engines:
        return "no engine is found yet: sched-ctl engines looks for them, and says what it misses"
    answering = [engine for engine in engines if engine["state"] == "ok"]
    if not answering:
        named = ", ".join(f"{engine['engine']} ({engine['state']})" for engine in engines[:5])
        return f"no engine answers: {named}"
    idle = [engine["engine"] for engine in answering if not engine["queries"]]
    if len(idle) == len(answering):
        return f"{', '.join(idle[:5])} answers, and runs no query: submit one"
    threads = sum(engine["threads"] for engine in answering)
    if not threads:
        return "no thread of an operator is known: sched-ctl engines says why"
    return "too early to tell: ask again in some seconds"
