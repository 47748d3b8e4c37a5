"""What the fleet commands have in common."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sched_ctl.config.settings import ConfigError

__all__ = [
    "Conf",
    "DropIns",
    "Master",
    "Node",
    "Query",
    "Since",
    "Until",
    "check",
    "percent",
    "spark_of",
]

Since = Annotated[
    str | None,
    typer.Option(
        help="Only from then on: 2026-11-22, 2026-11-22T03:00 (UTC), or so long ago: 12h, 7d. "
        "Whole hours.",
        metavar="TIME",
        show_default=False,
    ),
]
Until = Annotated[
    str | None,
    typer.Option(help="Only up to then, likewise.", metavar="TIME", show_default=False),
]
Node = Annotated[
    list[str] | None,
    typer.Option(
        help="Only these nodes; * and ? fit any letters, ! excludes. May be repeated.",
        metavar="NAME",
        show_default=False,
    ),
]
Query = Annotated[
    list[str] | None,
    typer.Option(help="Only these queries, likewise.", metavar="NAME", show_default=False),
]
DropIns = Annotated[
    Path | None,
    typer.Option(
        help="Folder for a drop-in for all nodes: auto's race begins with the best there.",
        metavar="DIR",
        show_default=False,
    ),
]

Master = Annotated[
    str | None,
    typer.Option(
        help="Spark's master: local[2], spark://HOST:PORT, yarn. Default: its own, or local[*].",
        metavar="URL",
        show_default=False,
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        help="A setting of Spark; may be repeated.", metavar="KEY=VALUE", show_default=False
    ),
]


def percent(share: float | None, sign: str = "") -> str:
    return "-" if share is None or share != share else f"{sign}{share:.1%}"


def check() -> None:
    from sched_ctl.pipeline.spark import check

    check()


def spark_of(name: str, master: str | None, conf: list[str] | None, *, stays: bool = False) -> Any:
    from sched_ctl.pipeline.spark import spark

    settings = {}
    for text in conf or []:
        key, equals, value = text.partition("=")
        if not equals or not key.startswith("spark."):
            raise ConfigError(f"--conf {text!r}: a setting of Spark is spark.KEY=VALUE")
        settings[key] = value
    return spark(name, master, settings, stays=stays)
