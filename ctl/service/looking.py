"""What a controller answers to whoever looks, and changes nothing by it."""

from collections.abc import Mapping
from typing import Any

from sched_ctl.controller.loop import Controller
from sched_ctl.errors import UserError
from sched_ctl.service import bottlenecks, views
from sched_ctl.service.dispatch import dispatch
from sched_ctl.service.socket import Handler

__all__ = ["handlers", "text"]

WORD = 4096  # characters of a name or pattern: making ready one of 30,000 took the loop 18 s


def handlers(controller: Controller) -> dict[str, Handler]:
    """By verb, see `socket.LOOKS`."""

    async def status(_: Mapping[str, Any]) -> object:
        return views.status(controller)

    async def dispatched(_: Mapping[str, Any]) -> object:
        return dispatch(controller)

    async def explain(arguments: Mapping[str, Any]) -> object:
        told = views.explain(controller, text(arguments, "what"))
        found = await bottlenecks.look(controller, bottlenecks.SHORT_S)
        for thread in told:
            thread["verdict"] = bottlenecks.explained(found, thread["tid"])
            thread["replicas"] = bottlenecks.replicas(found, thread["tid"])
        return told

    async def threads(arguments: Mapping[str, Any]) -> object:
        return views.threads(controller, text(arguments, "what"))

    async def held(_: Mapping[str, Any]) -> object:
        return bottlenecks.bottlenecks(await bottlenecks.look(controller))

    async def top(_: Mapping[str, Any]) -> object:
        return bottlenecks.screen(
            controller, await bottlenecks.look(controller, bottlenecks.SHORT_S)
        )

    return {
        "status": status,
        "dispatch": dispatched,
        "explain": explain,
        "threads": threads,
        "bottlenecks": held,
        "top": top,
    }


def text(arguments: Mapping[str, Any], key: str) -> str:
    """An argument that is a word. Raises UserError."""
    value = arguments.get(key)
    if not isinstance(value, str) or not value:
        raise UserError(f"the argument {key!r} is missing")
    if len(value) > WORD:
        raise UserError(f"the argument {key!r} is longer than {WORD} characters")
    return value
