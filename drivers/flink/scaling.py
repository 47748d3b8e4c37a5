"""Other numbers of replicas for a running Flink job: its resource requirements (Flink 1.18 on).

Only the adaptive scheduler takes them. It restarts the job from its last checkpoint, so one is
taken first: without any a restart begins anew, and what the operators kept is lost.
"""

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from sched_ctl.drivers import EngineError, Target
from sched_ctl.drivers.flink import local
from sched_ctl.drivers.flink.plan import Job, Jobs, Vertex, VertexDetail, plan, query_names
from sched_ctl.drivers.sources import search
from sched_ctl.drivers.sources.http import PAGE_LIMIT, Endpoint
from sched_ctl.kernel.crowd import slowness

__all__ = ["FlinkScaler", "connect"]

ASK_S = 10.0  # that all answers to one call may take, and once more that to a change
LOOK_S = 0.1
MOST = 1 << 15  # where Flink tells no maximum: its own largest one
SAID = 200  # characters of Flink's own words in a message
ADAPTIVE = "set jobmanager.scheduler: adaptive in its configuration, and start the job again"


class _Vertex(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    parallelism: int = 1
    max_parallelism: int = MOST
    slot_sharing_group_id: str = ""


class _Sizes(msgspec.Struct, frozen=True):
    """/jobs/J"""

    vertices: list[_Vertex]

    @property
    def slots(self) -> dict[str, int]:
        """By group of vertices: a slot holds one replica of each of a group."""
        found: dict[str, int] = {}
        for vertex in self.vertices:
            group = vertex.slot_sharing_group_id
            found[group] = max(found.get(group, 0), vertex.parallelism)
        return found


class _Overview(msgspec.Struct, frozen=True, rename="kebab"):
    slots_total: int = MOST


class _Bounds(msgspec.Struct, frozen=True, rename="camel"):
    lower_bound: int = 1
    upper_bound: int = 1


class _Wish(msgspec.Struct, frozen=True):
    parallelism: _Bounds


class _Trigger(msgspec.Struct, frozen=True, rename="kebab"):
    request_id: str


class _State(msgspec.Struct, frozen=True):
    id: str


class _Operation(msgspec.Struct, frozen=True, rename="kebab"):
    failure_cause: Any = None


class _Checkpoint(msgspec.Struct, frozen=True):
    status: _State
    operation: _Operation | None = None


def connect(target: Target) -> "FlinkScaler":
    """Raises EngineError if it does not answer, UserError for a wrong address."""
    return search.connected(target, local.job_managers, "a Flink cluster", FlinkScaler)


class FlinkScaler:
    """One cluster's REST interface, for changes."""

    loses = ""

    def __init__(self, target: Target, rest: Endpoint) -> None:
        self.target = target
        self._rest = rest
        self._end_s = 0.0  # CLOCK_MONOTONIC

    def current(self, query: str) -> Mapping[tuple[str, ...], tuple[int, int]]:
        """As asked for. The most: what the job was compiled for, and the slots that there are."""
        self._begin()
        job = self._job(query)
        wishes = self._wishes(job)
        overview: _Overview = self._json("/overview", _Overview)
        sizes: dict[str, _Sizes] = {jid: self._json(f"/jobs/{jid}", _Sizes) for jid in self._live()}
        mine = sizes.get(job.jid) or _Sizes([])
        # Not what Flink calls available: a job keeps for a minute what it needs no more
        free = overview.slots_total - sum(sum(size.slots.values()) for size in sizes.values())
        known = {vertex.id: vertex for vertex in mine.vertices}
        answer = {}
        for logical, vertex in _vertices(job).items():
            if vertex.id in wishes and vertex.id in known:
                told = known[vertex.id]
                slots = mine.slots[told.slot_sharing_group_id] + max(0, free)
                limit = told.max_parallelism if told.max_parallelism > 0 else MOST
                answer[logical] = (
                    wishes[vertex.id].parallelism.upper_bound,
                    max(1, min(slots, limit)),
                )
        return answer

    def secure(self, query: str, timeout_s: float) -> None:
        """Take a checkpoint, and wait until it is complete."""
        self._begin()
        job = self._job(query)
        path = f"/jobs/{job.jid}/checkpoints"
        self._begin()
        status, body = self._send("POST", path, {"checkpointType": "FULL"})
        if status != 202:
            raise EngineError(
                f"{query}: no checkpoint can be taken ({_said(status, body)}), so a restart would "
                "lose its state",
                "let the job take checkpoints: execution.checkpointing.interval",
            )
        request = _decoded(body, _Trigger).request_id
        end_s = time.monotonic() + timeout_s
        while True:
            self._begin()
            state: _Checkpoint = self._json(f"{path}/{request}", _Checkpoint)
            if state.status.id == "COMPLETED":
                break
            if time.monotonic() >= end_s:
                raise EngineError(
                    f"{query}: its checkpoint is not complete after {timeout_s:g} s; nothing was "
                    "changed",
                    "the job's page in Flink's web interface tells which operator is late with it",
                )
            time.sleep(LOOK_S)
        if state.operation is not None and state.operation.failure_cause is not None:
            raise EngineError(
                f"{query}: its checkpoint failed; nothing was changed",
                "the job's page in Flink's web interface tells why",
            )

    def rescale(self, query: str, replicas: Mapping[tuple[str, ...], int]) -> None:
        self._begin()
        job = self._job(query)
        wishes = self._wishes(job)
        vertices = _vertices(job)
        for logical, count in replicas.items():
            vertex = vertices.get(logical)
            if vertex is None or vertex.id not in wishes:
                raise EngineError(f"{query} has no operator {'..'.join(logical)[:80]!r} any more")
            # The least stays one: with fewer slots it runs slower, but it runs
            wishes[vertex.id] = _Wish(_Bounds(1, count))
        path = f"/jobs/{job.jid}/resource-requirements"
        self._begin()
        status, body = self._send("PUT", path, _bounds(wishes))
        if status not in (200, 202):
            raise EngineError(f"{query}: Flink refuses: {_said(status, body)}", _hint(status))

    def close(self) -> None:
        self._rest.close()

    def _begin(self) -> None:
        """A call: however many jobs there are, its answers take no longer together.

        What changes something has time of its own: who left before the answer knows of nothing.
        """
        self._end_s = time.monotonic() + ASK_S * slowness()

    def _left_s(self) -> float:
        return max(0.0, self._end_s - time.monotonic())

    def _json(self, path: str, kind: Any) -> Any:
        return self._rest.json(path, self._left_s(), kind)

    def _send(self, method: str, path: str, body: object) -> tuple[int, bytes]:
        return self._rest.send(method, path, body, self._left_s(), PAGE_LIMIT)

    def _live(self) -> list[str]:
        jobs: Jobs = self._json("/jobs/overview", Jobs)
        return [job.jid for job in jobs.live]

    def _job(self, query: str) -> Job:
        live: list[Job] = [self._json(f"/jobs/{j}", Job) for j in self._live()]
        names = query_names(live)
        for job in live:
            if names[job.jid] == query:
                return job
        raise EngineError(f"{self.target.engine} runs no job {query[:80]!r} any more")

    def _wishes(self, job: Job) -> dict[str, _Wish]:
        """By vertex. Raises EngineError where they cannot be changed, and why."""
        path = f"/jobs/{job.jid}/resource-requirements"
        status, body = self._send("GET", path, None)
        if status == 200:
            wishes: dict[str, _Wish] = _decoded(body, dict[str, _Wish])
            return wishes
        if status == 404:
            raise EngineError(
                f"{job.name[:80]}: this Flink cannot rescale a running job",
                "Flink 1.18 and newer can, with jobmanager.scheduler: adaptive",
            )
        if b"UnsupportedOperation" in body:
            raise EngineError(
                f"{job.name[:80]} cannot be rescaled while it runs: its scheduler is not the "
                "adaptive one",
                ADAPTIVE,
            )
        raise EngineError(f"{job.name[:80]}: Flink refuses: {_said(status, body)}", _hint(status))


def _vertices(job: Job) -> dict[tuple[str, ...], Vertex]:
    """By what they are fused from."""
    none = {(job.jid, vertex.id): VertexDetail([]) for vertex in job.vertices}
    by_id = {vertex.id: vertex for vertex in job.vertices}
    return {row.logical: by_id[row.vertex] for row in plan([job], none).rows}


def _bounds(wishes: Mapping[str, _Wish]) -> dict[str, Any]:
    return {
        vertex: {
            "parallelism": {
                "lowerBound": wish.parallelism.lower_bound,
                "upperBound": wish.parallelism.upper_bound,
            }
        }
        for vertex, wish in wishes.items()
    }


def _decoded(body: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineError(f"Flink answered oddly: {error}") from None


def _said(status: int, body: bytes) -> str:
    """Flink's own words: the first line of its first error that is not its stack."""
    try:
        errors = msgspec.json.decode(body, type=dict[str, list[str]]).get("errors", [])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        errors = []
    for error in errors:
        line = error.partition("\n")[0].rpartition("Exception: ")[2].strip()
        if line and line != "Internal server error.":
            return line[:SAID]
    return f"status {status}"


def _hint(status: int) -> str | None:
    if status in (401, 403):
        return "give a password or certificate that may change jobs: [access] in the configuration"
    return None
