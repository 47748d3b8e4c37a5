"""Options of the sched_ext backend."""

from typing import Annotated, Literal

import msgspec

__all__ = ["ScxOptions"]


class ScxOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the sched_ext backend."""

    mode: Annotated[
        Literal["auto", "partial", "full"],
        msgspec.Meta(description="whether only operator threads are ours, or all normal ones"),
    ] = "auto"
    precedence: Annotated[
        Literal["fair", "engine"],
        msgspec.Meta(
            description="fair: the engine's share is that of the kernel's fair class; engine: "
            "operators go before all others",
        ),
    ] = "fair"
    slice: Annotated[
        float,
        msgspec.Meta(
            description="time that a thread runs before others are compared with it",
            ge=0.1,
            le=1000,
            extra={"unit": "ms"},
        ),
    ] = 3.0
    until_block: Annotated[
        bool, msgspec.Meta(description="let operators run until they block, at most 100 ms")
    ] = False
    clusters: Annotated[
        int, msgspec.Meta(description="classes of wait-dependent priorities", ge=1, le=64)
    ] = 12
    gap: Annotated[
        float,
        msgspec.Meta(
            description="work that is older by this goes before work one place more urgent",
            ge=0,
            le=3600,
            extra={"unit": "s"},
        ),
    ] = 1.0
    starvation: Annotated[
        float,
        msgspec.Meta(
            description="operators that wait longer for a CPU run in turn, whatever the policy",
            ge=1,
            le=10_000,  # a third of the kernel's patience: `timeout_ms` in bpf/sched_ctl.bpf.c
            extra={"unit": "ms"},
        ),
    ] = 500.0
    guarantee: Annotated[
        int,
        msgspec.Meta(
            description="share of each CPU for all other threads (full mode, precedence engine)",
            ge=0,
            le=50,
            extra={"unit": "%"},
        ),
    ] = 5
    server: Annotated[
        int,
        msgspec.Meta(
            description="share of each CPU for operators in partial mode; 0 = 90 if operators "
            "go first, else 50",
            ge=0,
            le=95,
            extra={"unit": "%"},
        ),
    ] = 0
    caps: Annotated[
        dict[str, Annotated[int, msgspec.Meta(ge=1, le=512)]],
        msgspec.Meta(
            description="how many threads of a query may run at once: pattern = number",
        ),
    ] = {}
    interrupt: Annotated[
        float,
        msgspec.Meta(
            description="a woken, more urgent operator waits until the one that runs had "
            "this; 0 = slice end",
            ge=0,
            le=1000,
            extra={"unit": "ms"},
        ),
    ] = 0.5
    floor: Annotated[
        float,
        msgspec.Meta(
            description="a query this far behind its fair share goes before those ahead of theirs; "
            "0 = never",
            ge=0,
            le=10_000,
            extra={"unit": "ms"},
        ),
    ] = 100.0
    preempt: Annotated[
        int,
        msgspec.Meta(
            description="a woken operator this many times more urgent preempts; 0 = never",
            ge=0,
            le=1_000_000,
        ),
    ] = 0
    align: Annotated[
        float,
        msgspec.Meta(
            description="how long a flusher may wait for its batch to end, 20 at most; 0 = never",
            ge=0,
            le=1000,
            extra={"unit": "ms"},
        ),
    ] = 20.0
    frequency: Annotated[
        Literal["use", "highest"],
        msgspec.Meta(
            description="what CPUs are asked for where the clock follows use: what is used, or the "
            "most",
        ),
    ] = "use"
    live: Annotated[
        bool,
        msgspec.Meta(description="go by head ages and queue lengths that engines write"),
    ] = True
    ttl: Annotated[
        float,
        msgspec.Meta(
            description="hints of a controller that gives no sign of life for so long are ignored",
            ge=0.2,
            le=60,
            extra={"unit": "s"},
        ),
    ] = 2.0
