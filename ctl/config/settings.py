"""Settings: what they are called and what they mean.

Each setting is declared once, as a field of `Settings` (or of `Section`, for one `[[policy]]`
section) with its type, bounds, unit and meaning. The TOML file, the command line flags
(`cli.flags`), `sched-ctl config` and docs/usage.md are made from, or checked against, these
declarations.
"""

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from sched_ctl.errors import UserError
from sched_ctl.model.access import Access
from sched_ctl.model.options import BackendOptions
from sched_ctl.model.programs import Program
from sched_ctl.model.targets import FORM, Target
from sched_ctl.runfolder import RunFolder

__all__ = [
    "ConfigError",
    "Elastic",
    "Prior",
    "Section",
    "Setting",
    "SettingError",
    "Settings",
    "Switch",
    "declared",
    "resolve",
]

Period = Annotated[
    float,
    Meta(
        description="time from one pass of the policy to the next",
        ge=0.001,
        le=3600,
        extra={"unit": "s"},
    ),
]
BackendName = Annotated[
    str,
    Meta(
        description="how schedules reach the kernel; auto takes the best one that works here",
        min_length=1,
    ),
]
LevelName = Annotated[
    Literal["auto", "physical", "logical"],
    Meta(
        description="whose priorities the policy computes: of the engine's operators, of "
        "those that the user wrote, or as it prefers"
    ),
]
Share = Annotated[float, Meta(gt=0, le=1e6)]
Shares = Annotated[
    dict[str, Share],
    Meta(
        description="CPU shares of queries, relative to each other; others get 1. Without "
        "any, queries are not grouped",
        extra={"flag": "--share", "metavar": "QUERY=SHARE"},
    ),
]
Targets = Annotated[
    tuple[Target, ...],
    Meta(
        description="latencies that queries are to keep; with any, auto takes deadline",
        extra={"flag": "--target", "metavar": FORM},
    ),
]
OnlyStarved = Annotated[
    bool,
    Meta(
        description="a backpressured operator changes places with the I/O- or "
        "memory-bound one that holds it"
    ),
]
Aim = Annotated[
    Literal["all", "mean", "median", "p99", "worst"],
    Meta(
        description="what auto goes by; all: mean and p99 better, median at most 1.2 of the OS's; "
        "worst: slowest query",
    ),
]
PolicyOptions = Annotated[
    dict[str, Any],
    Meta(
        description="options of the policy",
        extra={"flag": "--policy-option", "metavar": "KEY=VALUE"},
    ),
]


class Switch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[policy.switch]]` table: another policy for as long as a metric is beyond a threshold."""

    policy: Annotated[str, Meta(description="the policy that takes over", min_length=1)]
    metric: Annotated[
        str,
        Meta(
            description="a metric of the rule's operators, or pressure: the share of time in "
            "which some thread waited for a CPU",
            min_length=1,
        ),
    ]
    options: PolicyOptions = {}
    of: Annotated[
        Literal["max", "mean", "sum"],
        Meta(description="what is made of the values of all operators; unknown ones do not count"),
    ] = "max"
    above: Annotated[
        float | None, Meta(description="the policy takes over when the metric is above this")
    ] = None
    below: Annotated[
        float | None, Meta(description="or below this; one of the two is to be given")
    ] = None
    back: Annotated[
        float | None,
        Meta(
            description="where the other policy comes back; default: a fifth below `above`, a "
            "quarter above `below`"
        ),
    ] = None
    lasting: Annotated[
        float,
        Meta(
            description="for how long it has to be so, either way",
            ge=0,
            le=86400,
            extra={"unit": "s"},
        ),
    ] = 5.0


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[policy]]` section: which policy rules which operators, and how it is enforced.

    None = as the setting of the same name outside the section.
    """

    name: Annotated[
        str,
        Meta(description="name of this rule, for status and policy set; default: the policy's"),
    ] = ""
    policy: Annotated[
        str, Meta(description="name of the policy, see sched-ctl policies", min_length=1)
    ] = "auto"
    options: PolicyOptions = {}
    queries: Annotated[
        tuple[str, ...],
        Meta(description="queries it rules, as patterns"),
    ] = ("*",)
    engines: Annotated[
        tuple[str, ...],
        Meta(description='engines it rules, as patterns of, for example, "flink:*"'),
    ] = ("*",)
    period: Period | None = None
    backend: BackendName | None = None
    level: LevelName | None = None
    shares: Shares | None = None
    target: Targets | None = None
    only_starved: OnlyStarved | None = None
    objective: Aim | None = None
    switch: Annotated[
        tuple[Switch, ...],
        Meta(
            description="other policies for as long as a metric is beyond a threshold; the first "
            "that applies counts"
        ),
    ] = ()


class Elastic(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[elastic]]` section: queries that are given the replicas that they need."""

    queries: Annotated[
        tuple[str, ...],
        Meta(description="queries that may be given other replicas, as patterns"),
    ] = ("*",)
    engines: Annotated[
        tuple[str, ...],
        Meta(description="engines whose queries these are, as patterns"),
    ] = ("*",)
    replicas: Annotated[
        int, Meta(description="most replicas that an operator is given", ge=1, le=32768)
    ] = 8
    pause: Annotated[
        float,
        Meta(
            description="time from one change of a query to the next",
            ge=10,
            le=86400,
            extra={"unit": "s"},
        ),
    ] = 300.0
    within: Annotated[
        float,
        Meta(
            description="time in which a change has to make up for its restart",
            ge=1,
            le=604800,
            extra={"unit": "s"},
        ),
    ] = 600.0


class Prior(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[prior]]` section: an order that was seen to suit, where `auto` has yet to find one."""

    policy: Annotated[
        str,
        Meta(
            description="the order that the race tries first; os: the system's own stays until "
            "another one wins",
            min_length=1,
        ),
    ]
    queries: Annotated[
        tuple[str, ...],
        Meta(description="queries of which it is expected, as patterns"),
    ] = ("*",)
    engines: Annotated[
        tuple[str, ...],
        Meta(description="engines whose queries these are, as patterns"),
    ] = ("*",)
    machine: Annotated[
        str,
        Meta(description="kind of machine, as fleet profile calls it; empty: any"),
    ] = ""


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything outside the `[[policy]]` sections, and the sections."""

    policy: Annotated[
        tuple[Section, ...],
        Meta(
            description="policies and what they rule; the first whose patterns select an operator "
            "has it",
            extra={"flag": "--policy", "metavar": "[QUERIES=]NAME"},
        ),
    ] = (Section(),)
    engine: Annotated[
        tuple[str, ...],
        Meta(
            description='engines to schedule, for example "flink:127.0.0.1:8081" or a kind alone; '
            "empty: all that are found on this machine",
            extra={"metavar": "KIND[:ADDRESS]"},
        ),
    ] = ()
    access: Annotated[
        dict[str, Access],
        Meta(
            description="TLS, certificates and passwords for an engine's web interface: "
            "tables by pattern of the engine",
            extra={"flag": "--access", "metavar": "ENGINE.KEY=FILE"},
        ),
    ] = {}
    program: Annotated[
        tuple[Program, ...],
        Meta(
            description="programs whose threads are operators, by their names; the flag names a "
            "file of such sections",
            extra={"metavar": "FILE"},
        ),
    ] = ()
    exclude: Annotated[
        tuple[str, ...],
        Meta(
            description="never touch these: patterns of a query, query/operator, thread name, "
            "or of each after engine:",
            extra={"metavar": "PATTERN"},
        ),
    ] = ()
    users: Annotated[
        tuple[str, ...],
        Meta(
            description="whose engines are ordered together with root's, as names, uids or "
            "pod:NAMESPACE/*; others' are ordered alone",
            extra={"metavar": "USER"},
        ),
    ] = ()
    period: Period = 1.0
    calm_period: Annotated[
        float,
        Meta(
            description="longest time between passes while no thread waits for a CPU; "
            "period or less: none is skipped",
            ge=0,
            le=3600,
            extra={"unit": "s"},
        ),
    ] = 5.0
    pressed_period: Annotated[
        float,
        Meta(
            description="time between two passes while the CPUs are under pressure; 0: as period",
            ge=0,
            le=3600,
            extra={"unit": "s"},
        ),
    ] = 0.0
    cpu_limit: Annotated[
        float,
        Meta(
            description="CPU time that passes and engines' answers may take, else passes are "
            "rarer; 0: no limit",
            ge=0,
            le=1,
            extra={"unit": "CPUs", "metavar": "CPUS"},
        ),
    ] = 0.02
    pressure: Annotated[
        Literal["poll", "trigger"],
        Meta(
            description="how the end of calm is noticed: by a look once a period, or at once "
            "by a PSI trigger",
        ),
    ] = "poll"
    backend: BackendName = "auto"
    backends: Annotated[
        BackendOptions,
        Meta(
            description="options of backends, a table for each",
            extra={"flag": "--backend-option", "metavar": "BACKEND.KEY=VALUE"},
        ),
    ] = BackendOptions()
    level: LevelName = "auto"
    shares: Shares = {}
    target: Targets = ()
    only_starved: OnlyStarved = False
    objective: Aim = "all"
    elastic: Annotated[
        tuple[Elastic, ...],
        Meta(
            description="queries that are given other replicas by themselves; the flag names a "
            "file of such sections",
            extra={"metavar": "FILE"},
        ),
    ] = ()
    helpers: Annotated[
        dict[str, str],
        Meta(
            description="engine threads without an operator, pattern of role or kind:role = "
            "follow, top, neutral or leave",
            extra={"flag": "--helper", "metavar": "ROLE=RULE"},
        ),
    ] = {}
    guard: Annotated[
        float,
        Meta(
            description="time from one short phase of the OS's own scheduling to the next, "
            "for comparison; 0: none",
            ge=0,
            le=86400,
            extra={"unit": "s"},
        ),
    ] = 0.0
    race: Annotated[
        float,
        Meta(
            description="length of phases in which auto tries orders beside the OS's; the "
            "best stays; 0: none",
            ge=0,
            le=3600,
            extra={"unit": "s"},
        ),
    ] = 10.0
    prior: Annotated[
        tuple[Prior, ...],
        Meta(
            description="orders with which the race begins, by query and kind of machine; the "
            "flag names a file of such sections",
            extra={"metavar": "FILE"},
        ),
    ] = ()
    window: Annotated[
        float,
        Meta(
            description="how far back counters are compared for rates and costs",
            ge=0.01,
            le=600,
            extra={"unit": "s"},
        ),
    ] = 5.0
    poll_timeout: Annotated[
        float,
        Meta(description="how long an engine may take to answer", gt=0, le=60, extra={"unit": "s"}),
    ] = 1.0
    stale_after: Annotated[
        float,
        Meta(
            description="how long an engine that stopped answering keeps its schedule",
            ge=0,
            le=86400,
            extra={"unit": "s"},
        ),
    ] = 10.0
    discover: Annotated[
        float,
        Meta(
            description="time between searches for engines; a minute if no process starts here",
            ge=0.1,
            le=3600,
            extra={"unit": "s"},
        ),
    ] = 5.0
    trace: Annotated[
        bool,
        Meta(
            description="trace each wait of engines' threads for a CPU. Costs a little at "
            "each switch of the machine"
        ),
    ] = False
    metrics: Annotated[
        str,
        Meta(
            description="where to answer Prometheus: 127.0.0.1:PORT, [::1]:PORT or the path "
            "of a socket; empty: nowhere",
            extra={"metavar": "ADDRESS"},
        ),
    ] = ""
    record: Annotated[
        str,
        Meta(
            description="folder to record into what was seen, for replay and fleet; empty: "
            "nothing is recorded",
            extra={"metavar": "DIR"},
        ),
    ] = ""
    record_period: Annotated[
        float,
        Meta(
            description="time that one record is over; its sums are of all passes in it",
            ge=0.1,
            le=3600,
            extra={"unit": "s"},
        ),
    ] = 5.0
    record_limit: Annotated[
        float,
        Meta(
            description="size of all that is recorded; beyond it the oldest files go",
            ge=1,
            le=1e6,
            extra={"unit": "MB", "metavar": "MB"},
        ),
    ] = 500.0
    record_rotate: Annotated[
        float,
        Meta(
            description="age at which a recorded file is closed, and can be fetched",
            ge=1,
            le=604800,
            extra={"unit": "s"},
        ),
    ] = 3600.0
    profiles: Annotated[
        str,
        Meta(
            description="operator profiles (fleet profile) to start from, until an operator's "
            "own figures are measured; empty: none",
            extra={"metavar": "FILE"},
        ),
    ] = ""
    node: Annotated[
        str,
        Meta(description="name of this machine in what is recorded; empty: the host's name"),
    ] = ""
    run_dir: Annotated[
        str,
        Meta(
            description="folder of the lock, the control socket and the journal of changes",
            min_length=1,
        ),
    ] = str(RunFolder().path)


class ConfigError(UserError):
    """A setting that cannot be used, with the file (or flag) and the key."""

    code = 2


class SettingError(UserError):
    """A value of the right form that means nothing here, such as a policy that does not exist.

    where: keys from the outermost inwards; that of a `[[policy]]` section is its name. `origin`
    tells which file it is in.
    """

    def __init__(self, where: tuple[str, ...], message: str, hint: str | None = None) -> None:
        super().__init__(message, hint)
        self.where = where


@dataclass(frozen=True)
class Setting:
    """One declared setting, for flags and docs."""

    key: str
    type: Any  # without its annotations
    default: Any
    description: str
    unit: str
    flag: str
    metavar: str | None
    bounds: str


def declared(struct: type[Struct] = Settings) -> tuple[Setting, ...]:
    """The settings of `struct`, in order of declaration."""
    return tuple(_settings(struct))


def _settings(struct: type[Struct]) -> Iterator[Setting]:
    for field in msgspec.structs.fields(struct):
        kind, metas = _strip(field.type)
        extra: dict[str, Any] = {}
        description = ""
        bounds: list[str] = []
        for meta in metas:
            extra |= meta.extra or {}
            description = meta.description or description
            for sign, bound in (("> ", meta.gt), ("≥ ", meta.ge), ("< ", meta.lt), ("≤ ", meta.le)):
                if bound is not None:
                    bounds.append(f"{sign}{bound:g}")
        default = (
            field.default_factory()
            if field.default_factory is not msgspec.NODEFAULT
            else field.default
        )
        yield Setting(
            key=field.encode_name,
            type=kind,
            default=default,
            description=description,
            unit=extra.get("unit", ""),
            flag=extra.get("flag", "--" + field.encode_name.replace("_", "-")),
            metavar=extra.get("metavar"),
            bounds=", ".join(bounds),
        )


def _strip(kind: Any) -> tuple[Any, list[Meta]]:
    """A type without `Annotated` and `| None`, and its annotations, outermost first."""
    metas: list[Meta] = []
    while True:
        if get_origin(kind) is Annotated:
            kind, *more = get_args(kind)
            metas += [meta for meta in more if isinstance(meta, Meta)]
        elif get_origin(kind) in (Union, types.UnionType):
            [kind] = [part for part in get_args(kind) if part is not type(None)]
        else:
            return kind, metas


def resolve(settings: Settings) -> tuple[Section, ...]:
    """The sections with every key set: None replaced by the general setting."""
    return tuple(
        msgspec.structs.replace(
            section,
            name=section.name or section.policy,
            period=settings.period if section.period is None else section.period,
            backend=section.backend or settings.backend,
            level=section.level or settings.level,
            shares=settings.shares if section.shares is None else section.shares,
            target=settings.target if section.target is None else section.target,
            only_starved=(
                settings.only_starved if section.only_starved is None else section.only_starved
            ),
            objective=section.objective or settings.objective,
        )
        for section in settings.policy
    )
