"""What Spark's web interface says: jobs and gauges.

Both resources are asked for what is now only, so an answer grows with what runs and not with what
ran. Names and numbers in them are the application's, and anything may be missing.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from sched_ctl.drivers.threadnames import UUID

__all__ = [
    "Application",
    "Executor",
    "Gauges",
    "Job",
    "Pace",
    "Query",
    "query_of",
    "stages",
]

GAUGE = ".driver.spark.streaming."  # APPLICATION.driver.spark.streaming.QUERY.WHAT
# What StreamExecution sets as the description of its jobs. Spark gives it out with line ends, and
# older versions with what browsers take for them.
DESCRIPTION = re.compile(
    rf"(?:(?P<name>.*?)(?:\n|<br/>))??id = (?P<id>{UUID})(?:\n|<br/>)runId = (?P<run>{UUID})\b.*",
    re.DOTALL,
)
LONGEST = 4096  # characters of a description that are looked at


class Attempt(msgspec.Struct):
    completed: bool = False


class Application(msgspec.Struct):
    id: str
    name: str = ""
    attempts: list[Attempt] = []


class Executor(msgspec.Struct, rename="camel"):
    id: str
    is_active: bool = True


class Job(msgspec.Struct, rename="camel"):
    """A running job. group: of a streaming query's, the id of its run."""

    job_id: int
    stage_ids: list[int] = []
    group: str | None = msgspec.field(default=None, name="jobGroup")
    description: str | None = None
    num_active_stages: int = 0
    num_completed_tasks: int = 0


class Gauge(msgspec.Struct):
    value: Any = None


class Gauges(msgspec.Struct):
    gauges: dict[str, Gauge] = {}

    def paces(self) -> Mapping[str, "Pace"]:
        """By the queries' names; those without a name have their id there."""
        found: dict[str, dict[str, float]] = {}
        for name, gauge in self.gauges.items():
            _, inside, rest = name.partition(GAUGE)
            query, dot, what = rest.rpartition(".")
            if inside and dot and isinstance(gauge.value, int | float):
                value = float(gauge.value)
                if math.isfinite(value) and value >= 0:
                    found.setdefault(query, {})[what] = value
        return {query: Pace.of(values) for query, values in found.items()}


@dataclass(frozen=True, slots=True)
class Pace:
    """How a query's last batch went; NaN where unknown.

    rate: rows a second taken in, from the start of the batch before to that of this one.
    batch_s: how long it took, planning and committing included.
    """

    rate: float = math.nan
    batch_s: float = math.nan

    @classmethod
    def of(cls, values: Mapping[str, float]) -> "Pace":
        rate = values.get("inputRate-total", math.nan)
        batch_s = values.get("latency", math.nan) / 1e3
        # No batch has ended yet; in continuous mode none ever does.
        return cls() if batch_s == 0 else cls(rate, batch_s)


@dataclass(frozen=True, slots=True)
class Query:
    """A streaming query. run: another one at each start. id: its checkpoint's. name: or ""."""

    run: str
    id: str
    name: str = ""


def query_of(job: Job) -> Query | None:
    """The query that started the job, or None if that is no streaming query."""
    match = DESCRIPTION.fullmatch((job.description or "")[:LONGEST])
    if match is None or match["run"] != job.group:
        return None
    return Query(match["run"], match["id"], match["name"] or "")


def stages(jobs: list[Job]) -> Mapping[int, tuple[Job, int]]:
    """Stage -> its job, and which of the job's stages it is, from 0 in the order of the data."""
    # A stage has a larger number than those that it reads from.
    return {
        stage: (job, place) for job in jobs for place, stage in enumerate(sorted(job.stage_ids))
    }
