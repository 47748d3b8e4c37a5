"""Options of backends: what they are called and what they mean.

Each backend has its own, as typed fields of `BackendOptions`; the tables of the configuration file
become these once, when it is read.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

__all__ = [
    "SPAN",
    "BackendOptions",
    "Cgroup2Options",
    "GroupOptions",
    "NiceOptions",
    "Options",
    "PoolOptions",
    "QuotaOptions",
    "RealTimeOptions",
    "ScxOptions",
    "SliceOptions",
    "by_name",
    "faults",
    "inherited",
]

SPAN = 10  # nice levels from the most to the least urgent: a favoured query gains no more by more
Recheck = Annotated[
    float,
    Meta(
        description="each thread is re-read, and repaired if somebody else changed it, once in",
        ge=0.1,
        le=3600,
        extra={"unit": "s"},
    ),
]


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of a backend."""

    @property
    def fault(self) -> str | None:
        """What is wrong with options that are each of the right form, in words."""
        return None


class ScxOptions(Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the sched_ext backend."""

    mode: Annotated[
        Literal["auto", "partial", "full"],
        Meta(description="whether only operator threads are ours, or all normal ones"),
    ] = "auto"
    precedence: Annotated[
        Literal["fair", "engine"],
        Meta(
            description="fair: the engine's share is that of the kernel's fair class; engine: "
            "operators go before all others",
        ),
    ] = "fair"
    slice: Annotated[
        float,
        Meta(
            description="time that a thread runs before others are compared with it",
            ge=0.1,
            le=1000,
            extra={"unit": "ms"},
        ),
    ] = 3.0
    until_block: Annotated[
        bool, Meta(description="let operators run until they block, at most 100 ms")
    ] = False
    clusters: Annotated[
        int, Meta(description="classes of wait-dependent priorities", ge=1, le=64)
    ] = 12
    gap: Annotated[
        float,
        Meta(
            description="work that is older by this goes before work one place more urgent",
            ge=0,
            le=3600,
            extra={"unit": "s"},
        ),
    ] = 1.0
    starvation: Annotated[
        float,
        Meta(
            description="operators that wait longer for a CPU run in turn, whatever the policy",
            ge=1,
            le=10_000,  # a third of the kernel's patience: `timeout_ms` in bpf/sched_ctl.bpf.c
            extra={"unit": "ms"},
        ),
    ] = 500.0
    guarantee: Annotated[
        int,
        Meta(
            description="share of each CPU for all other threads (full mode, precedence engine)",
            ge=0,
            le=50,
            extra={"unit": "%"},
        ),
    ] = 5
    server: Annotated[
        int,
        Meta(
            description="share of each CPU for operators in partial mode; 0 = 90 if operators "
            "go first, else 50",
            ge=0,
            le=90,  # the kernel's 95, less the 5 of the fair class's own server
            extra={"unit": "%"},
        ),
    ] = 0
    caps: Annotated[
        dict[str, Annotated[int, Meta(ge=1, le=512)]],
        Meta(
            description="how many threads of a query may run at once: pattern = number",
        ),
    ] = {}
    interrupt: Annotated[
        float,
        Meta(
            description="a woken, more urgent operator waits until the one that runs had "
            "this; 0 = slice end",
            ge=0,
            le=1000,
            extra={"unit": "ms"},
        ),
    ] = 0.5
    floor: Annotated[
        float,
        Meta(
            description="a query this far behind its fair share goes before those ahead of theirs; "
            "0 = never",
            ge=0,
            le=10_000,
            extra={"unit": "ms"},
        ),
    ] = 100.0
    preempt: Annotated[
        int,
        Meta(
            description="a woken operator this many times more urgent preempts; 0 = never",
            ge=0,
            le=1_000_000,
        ),
    ] = 0
    align: Annotated[
        float,
        Meta(
            description="how long a flusher may wait for its batch to end, 20 at most; 0 = never",
            ge=0,
            le=1000,
            extra={"unit": "ms"},
        ),
    ] = 20.0
    frequency: Annotated[
        Literal["use", "highest"],
        Meta(
            description="what CPUs are asked for where the clock follows use: what is used, or the "
            "most",
        ),
    ] = "use"
    live: Annotated[
        bool,
        Meta(description="go by head ages and queue lengths that engines write"),
    ] = True
    arrivals: Annotated[
        bool,
        Meta(description="tuples from another node begin with the age that is estimated of them"),
    ] = False
    ttl: Annotated[
        float,
        Meta(
            description="hints of a controller that gives no sign of life for so long are ignored",
            ge=0.2,
            le=60,
            extra={"unit": "s"},
        ),
    ] = 2.0


class NiceOptions(Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the nice backend, and of nice inside cgroups.

    The levels lie between best and worst so that the weights of the threads that want to run add up
    to what they were; a thread that had another nice value than 0 has these around its own.
    """

    best: Annotated[int, Meta(description="least nice value of an operator", ge=-20, le=19)] = -SPAN
    worst: Annotated[int, Meta(description="largest nice value of an operator", ge=-20, le=19)] = (
        SPAN
    )
    levels: Annotated[
        int,
        Meta(
            description="nice levels from the most to the least urgent; weights decide where "
            "between `best` and `worst`",
            ge=0,
            le=39,
        ),
    ] = SPAN
    dead_band: Annotated[
        float,
        Meta(
            description="a nice value is rewritten when the wanted one, not rounded, is "
            "further away; 0.5: always",
            ge=0.5,
            le=19,
            extra={"unit": "nice levels"},
        ),
    ] = 0.6
    recheck: Recheck = 10.0

    @property
    def fault(self) -> str | None:
        if self.best <= self.worst:
            return None
        return f"`best` {self.best} must not be above `worst` {self.worst}"

    @property
    def keeps_weight(self) -> bool:
        """Whether there is room to choose where the levels lie."""
        return self.levels < self.worst - self.best

    @property
    def range(self) -> tuple[int, int]:
        """Of nice values; where weight is kept, of levels below the most urgent."""
        return (0, self.levels) if self.keeps_weight else (self.best, self.worst)


class GroupOptions(NiceOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the cgroup backends; those of nice count where nice goes inside the groups."""

    max_groups: Annotated[
        int,
        Meta(description="cgroups at most, for a schedule without groups", ge=1, le=10_000),
    ] = 256


class Cgroup2Options(GroupOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the cgroup v2 backends."""

    ancestors: Annotated[
        bool,
        Meta(
            description="let the cgroups above an engine's pass on the cpu controller; their "
            "other children then weigh the same"
        ),
    ] = False


class SliceOptions(Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the slice backend."""

    short: Annotated[
        float,
        Meta(description="slice of the most urgent", ge=0.1, le=100, extra={"unit": "ms"}),
    ] = 0.1
    long: Annotated[
        float,
        Meta(description="slice of the least urgent", ge=0.1, le=100, extra={"unit": "ms"}),
    ] = 3.0
    recheck: Recheck = 10.0

    @property
    def fault(self) -> str | None:
        if self.short <= self.long:
            return None
        return f"`short` {self.short:g} must not be above `long` {self.long:g}"


class RealTimeOptions(Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the realtime backend."""

    policy: Annotated[Literal["rr", "fifo"], Meta(description="SCHED_RR or SCHED_FIFO")] = "rr"
    highest: Annotated[
        int, Meta(description="priority of the most urgent; the least has 1", ge=1, le=49)
    ] = 10
    bound: Annotated[
        float,
        Meta(
            description="a thread that used more of a CPU is an ordinary one until it uses half",
            gt=0,
            le=0.95,
        ),
    ] = 0.5
    recheck: Recheck = 10.0


class QuotaOptions(Cgroup2Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the quota backend; those of the cgroup backends count too."""

    cpus: Annotated[
        float,
        Meta(description="CPUs that the shares divide", gt=0, le=4096, extra={"unit": "CPUs"}),
    ] = 1.0
    period: Annotated[
        float,
        Meta(
            description="time in which a quota may be used up", ge=1, le=1000, extra={"unit": "ms"}
        ),
    ] = 100.0


class PoolOptions(Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the pool backend."""

    ttl: Annotated[
        float,
        Meta(
            description="the engine forgets urgencies that are not renewed within",
            ge=0.1,
            le=3600,
            extra={"unit": "s"},
        ),
    ] = 30.0


class BackendOptions(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={"cgroup2_nice": "cgroup2+nice", "cgroup1_nice": "cgroup1+nice"},
):
    """Options of all backends."""

    scx: ScxOptions = ScxOptions()
    cgroup2_nice: Cgroup2Options = Cgroup2Options()
    cgroup1_nice: GroupOptions = GroupOptions()
    nice: NiceOptions = NiceOptions()
    cgroup2: Cgroup2Options = Cgroup2Options()
    cgroup1: GroupOptions = GroupOptions()
    slice: SliceOptions = SliceOptions()
    realtime: RealTimeOptions = RealTimeOptions()
    quota: QuotaOptions = QuotaOptions()
    pool: PoolOptions = PoolOptions()


def by_name(options: BackendOptions) -> dict[str, Options]:
    """The options of each backend by its name, in the order of the ladder."""
    fields = msgspec.structs.fields(BackendOptions)
    return {field.encode_name: getattr(options, field.name) for field in fields}


def inherited(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Tables as in the file, with what backends made of others have from those.

    cgroup1+nice has the options of cgroup1 and nice, unless its own table says otherwise.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in by_name(BackendOptions()):
        given = [tables[part] for part in (*name.split("+"), name) if part in tables]
        if given:
            found[name] = {key: value for table in given for key, value in table.items()}
    return found


def faults(options: BackendOptions) -> Iterator[tuple[str, str]]:
    """(backend, what is wrong with its options), those first that others have theirs from."""
    for name, own in sorted(by_name(options).items(), key=lambda item: "+" in item[0]):
        if own.fault is not None:
            yield name, own.fault
