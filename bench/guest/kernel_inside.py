"""What `kernel.py` runs inside a guest: the lab engine under one scheduler after another.

    kernel_inside.py JOBS        JOBS: a file of JSON lines, one run each; results go to stdout

A job names a variant (how the operators' threads are scheduled) and the engine's arguments. True
costs and selectivities are used unless `noise` says otherwise, so what is measured is the
scheduling and not the metrics.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sched_ctl.backends.pool import Pool
from sched_ctl.backends.scx.backend import behind_us
from sched_ctl.backends.scx.hints import Limits, hints, merged
from sched_ctl.backends.scx.live import LiveRows
from sched_ctl.backends.scx.slots import behind, numbers, rivals, strict
from sched_ctl.backends.scx.weight import Weight
from sched_ctl.decide.starved import only_starved
from sched_ctl.drivers.lab import driver
from sched_ctl.kernel.scheduler import Scheduler, thread_pidfd
from sched_ctl.kernel.stacks import Stacks
from sched_ctl.kernel.tracing import Tracer
from sched_ctl.lab import engine as lab
from sched_ctl.metrics import feasibility, verdicts
from sched_ctl.metrics.window import Window
from sched_ctl.model.graph import Array
from sched_ctl.model.normalise import nice_values, positions
from sched_ctl.model.options import ScxOptions
from sched_ctl.model.policy import Policy
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.targets import Target, target_of
from sched_ctl.model.topology import Snapshot, Thread
from sched_ctl.plugins import registry
from sched_ctl.probes.threads import ThreadTimes
from sched_ctl.sim import Node, calibrate, of_workload
from sched_ctl.workloads import workload

SCHED_EXT = 7
PREFIX = "@@"
WINDOW = 3  # periods over which is measured what a policy does not get true
Job = Mapping[str, Any]


def node_of(path: Path, job: Job) -> Node:
    """The workload with its true costs and selectivities, or with errors of factor exp(noise)."""
    node = of_workload(workload.load(path), utilisation=job["utilisation"])
    if noise := job.get("noise", 0.0):
        random = np.random.default_rng(job["seed"])
        node.cost_s[:] = node.cost_s * np.exp(noise * random.standard_normal(node.n))
        wrong = node.selectivity * np.exp(noise * random.standard_normal(node.n))
        node.selectivity[:] = np.minimum(wrong, 1.0)
    return node


def schedule_of(
    node: Node,
    policy: Policy,
    snapshot: Snapshot,
    since: Snapshot | None = None,
    then: Snapshot | None = None,
    told: dict[str, Counter[str]] | None = None,
    act: bool = True,
    stood: dict[feasibility.Query, feasibility.Judgement] | None = None,
) -> Schedule:
    """What the policy decides now for the engine's threads, in the order of its operators.

    since: use of the CPU and utilisation are what was seen from then on, not the true ones. then:
    `only_starved`, by the verdicts from then on, which are counted in `told`. act: False = judge,
    which takes the time that it takes, and leave the policy as it is. stood: how queries stood
    with their targets when this was asked last; brought up to date.
    """
    mine = {(o.query, o.name): row for row, o in enumerate(node.topology.operators)}
    operators = snapshot.topology.operators
    rows = np.array([mine[o.query, o.name] for o in operators], dtype=np.intp)
    size = np.zeros(node.n)
    age = np.zeros(node.n)
    size[rows] = snapshot.columns["queue_size"]
    age[rows] = snapshot.columns["head_age"]
    observed: tuple[Array, Array] = size, age
    frame = node.frame(policy, 0.0, observed)
    if since is not None:
        seen = {"cpu_use": np.zeros(node.n), "utilisation": np.zeros(node.n)}
        seconds = snapshot.time_s - since.time_s
        cpu, idle = (snapshot.columns[c] - since.columns[c] for c in ("cpu_time", "idle_time"))
        seen["cpu_use"][rows], seen["utilisation"][rows] = cpu / seconds, 1.0 - idle / seconds
        frame = replace(frame, columns={**frame.columns, **seen})
    if then is not None:
        verdict = np.zeros(node.n)
        verdict[rows] = found = verdicts.codes(Window(snapshot, then))
        count({} if told is None else told, snapshot, found)
        frame = replace(frame, columns={**frame.columns, "verdict": verdict})
        policy = only_starved(policy) if act else policy
    targets: Any = policy.options.get("targets", ())
    if targets:
        engines, stood = ("lab",), {} if stood is None else stood
        stood |= feasibility.judge(frame, engines, targets, 1.0, stood)
        columns = {**frame.columns, **feasibility.tell(frame, engines, stood)}
        frame = replace(frame, columns=columns)
    form = policy.urgency(frame).take(rows)
    return Schedule(
        scope="bench",
        policy=policy.name,
        spacing=policy.spacing,
        strict=policy.strict,
        threads=tuple(o.threads[0] for o in operators),
        operators=tuple(o.label for o in operators),
        form=form,
        head_age_s=snapshot.columns["head_age"],
        queue_size=snapshot.columns["queue_size"],
        queries=tuple(("lab", o.query) for o in operators),
        depth=node.topology.graph.reversed.height[rows] + 1,
    )


# -- ways to schedule the operators: each takes a Schedule and enforces it -------------------------


def enforce_nice(schedule: Schedule) -> None:
    for thread, value in zip(schedule.threads, nice_values(schedule), strict=True):
        os.setpriority(os.PRIO_PROCESS, thread.tid, int(value))


def enforce_fifo(schedule: Schedule) -> None:
    place = positions(schedule.form, schedule.head_age_s, schedule.queue_size, schedule.spacing)
    for thread, at in zip(schedule.threads, place, strict=True):
        param = os.sched_param(1 + round(float(at) * 88))
        os.sched_setscheduler(thread.tid, os.SCHED_FIFO, param)


def enforce_policy(number: int) -> Callable[[Schedule], None]:
    def enforce(schedule: Schedule) -> None:
        for thread in schedule.threads:
            os.sched_setscheduler(thread.tid, number, os.sched_param(0))

    return enforce


def enforce_scx(scheduler: Scheduler, options: Job) -> Callable[[Schedule], None]:
    """Hints for the BPF scheduler; the threads are adopted the first time."""
    limits = Limits.of(scheduler.limits)
    adopted: dict[int, int] = {}
    rows = LiveRows(scheduler)
    flags = scheduler.slot_flags
    weight = Weight(scheduler, fair=False)
    scheduler.control["floor_us"] = round(ScxOptions().floor * 1e3)

    def enforce(schedule: Schedule) -> None:
        told = np.zeros(len(schedule.threads), dtype=np.bool_)
        indices = np.zeros(len(schedule.threads), dtype=np.uint32)
        if options.get("live"):
            indices, told = tell(rows, schedule.threads)
        parts = hints(schedule, limits, live=told, **options.get("hints", {}))
        found = merged([(0, part) for part in parts], len(schedule.threads), limits)
        count = len(found.queue_base)
        control = scheduler.control
        control["queues"]["base"][:count] = found.queue_base
        control["queues"]["slope"][:count] = found.queue_slope
        control["queues"]["group"][:count] = found.queue_group
        control["queues"]["flags"][:count] = (
            found.queue_exact * scheduler.queue_flags["QUEUE_EXACT"]
        )
        control["nr_queues"] = count
        for name, value in options.get("control", {}).items():
            control[name] = value
        slots = scheduler.slots[1 : len(schedule.threads) + 1]
        for name in ("queue", "lead_us", "base", "slope", "per_tuple"):
            slots[name] = getattr(found, name)
        slots["query"], slots["depth"] = numbers([schedule])
        slots["slice_us"] = behind([schedule]) * behind_us(ScxOptions().slice)
        if not options.get("whose", True):
            slots["query"] = 0
        if not options.get("depth", True):
            slots["depth"] = 0
        places = np.arange(1, len(slots) + 1)
        weight.of(places, slots["query"].astype(np.intp), strict([schedule]))
        weight.look()
        slots["live"] = indices
        slots["flags"] = (
            flags["SLOT_ACTIVE"]
            | (told & found.by_age) * flags["SLOT_LIVE_AGE"]
            | (told & (found.per_tuple > 0)) * flags["SLOT_LIVE_LENGTH"]
            | rivals([schedule]) * flags["SLOT_RIVALS"]
            | options.get("slot_flags", 0)
        )
        for slot, thread in enumerate(schedule.threads, 1):
            if thread.tid not in adopted:
                adopted[thread.tid] = slot
                fd = thread_pidfd(thread.tid)
                scheduler.adopt(fd, slot)
                os.close(fd)
                os.sched_setscheduler(thread.tid, SCHED_EXT, os.sched_param(0))

    return enforce


def tell(rows: LiveRows, threads: Sequence[Thread]) -> tuple[NDArray[Any], NDArray[Any]]:
    """`slot.live` of each thread, once the engine writes there: that takes it a tick or two."""
    indices = rows.indices(threads)
    for _ in range(20):
        rows.look()
        if rows.counting(indices).all():
            return indices, rows.counting(indices)
        time.sleep(0.02)
    raise RuntimeError("the engine does not tell what waits for its operators")


def count(told: dict[str, Counter[str]], now: Snapshot, codes: Array) -> None:
    """How often an operator was given each verdict."""
    for operator, code in zip(now.topology.operators, codes, strict=True):
        told.setdefault(operator.name, Counter())[verdicts.Verdict(int(code)).word] += 1


def in_force(scheduler: Scheduler) -> None:
    """Raises if the kernel has ended it: the rest was the fair class's work."""
    if ended := scheduler.exit():
        raise RuntimeError(f"the kernel ended the scheduler: {ended}")


@contextlib.contextmanager
def enforcer(job: Job) -> Iterator[tuple[Callable[[Schedule], None], Callable[[], Any]]]:
    """How the job's variant is enforced, and what it has to say afterwards."""

    def nothing() -> Any:
        return None

    kind = job["kind"]
    if kind == "scx":
        with Scheduler(full=job.get("full", False), tunables=job.get("tunables")) as scheduler:
            scheduler.attach()
            before = scheduler.stats()

            def counted() -> Any:
                in_force(scheduler)
                return {k: v - before[k] for k, v in scheduler.stats().items() if v - before[k]}

            yield enforce_scx(scheduler, job), counted
    elif kind == "pool":
        pool = Pool()
        yield lambda schedule: problems(pool.apply(schedule).problems), nothing
    else:
        kinds = {
            "os": lambda schedule: None,
            "load": lambda schedule: None,
            "batch": enforce_policy(os.SCHED_BATCH),
            "nice": enforce_nice,
            "fifo": enforce_fifo,
        }
        yield kinds[kind], nothing


@contextlib.contextmanager
def unless_ended(process: "subprocess.Popen[str]") -> Iterator[None]:
    """What fails is no failure if the process is about to end."""
    try:
        yield
    except Exception:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
            return
        raise


@contextlib.contextmanager
def loaded(pid: int, job: Job, before_s: float) -> Iterator[None]:
    """`sched-ctl load` by nice, as a user would have it; raises if it is not ready before_s."""
    with tempfile.TemporaryDirectory() as folder, Path(folder, "log").open("w+") as log:
        options = ["--engine", f"{job['engine']}:{pid}", "--policy", job["by"], "--backend", "nice"]
        options += ["--exclude", "sources", "--exclude", "labspe", "--run-dir", f"{folder}/run"]
        options += ["--race", "0"]
        program = [sys.executable, "-c", "from sched_ctl.cli import main; main()", "load"]
        with subprocess.Popen([*program, *options], stdout=log, stderr=log) as load:
            while "policy " not in Path(log.name).read_text() and load.poll() is None:
                time.sleep(0.5)
            ready_s = time.monotonic()
            yield
            load.terminate()
        if ready_s > before_s:
            raise RuntimeError("it began to schedule when tuples had come")
        if load.returncode:
            raise RuntimeError(Path(log.name).read_text())


def problems(found: tuple[str, ...]) -> None:
    if found:
        raise RuntimeError("; ".join(found))


@contextlib.contextmanager
def hogs(count: int) -> Iterator[list[int]]:
    """Processes that use all the CPU they get."""
    started = []
    try:
        for _ in range(count):
            pid = os.fork()
            if not pid:
                while True:
                    pass
            started.append(pid)
        yield started
    finally:
        for pid in started:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


def cpu_s(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) * 1e-9


def run(job: Job) -> dict[str, Any]:
    policy = registry.policy(job["policy"], job.get("options", {})) if "policy" in job else None
    arguments = [str(a) for a in job["arguments"]]
    told: dict[str, Counter[str]] = {}
    if job["kind"] == "pool":
        arguments += ["--threads", f"pool:{job.get('cpus', 1)}"]
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(lab.workload_file(job["workload"], job["seed"]))
        enforce, report = stack.enter_context(enforcer(job))
        engine = stack.enter_context(lab.running(path, arguments))
        others = stack.enter_context(hogs(job.get("hogs", 0)))
        began, used = time.monotonic(), [cpu_s(pid) for pid in others]
        if job["kind"] == "load":
            delay_s = float(arguments[len(arguments) - 1 - arguments[::-1].index("--delay") + 1])
            with loaded(engine.pid, job, began + delay_s):
                engine.process.wait()
        elif policy is not None or job["kind"] != "os":
            policy = policy or registry.policy("fcfs")
            node = node_of(path, job)
            view = driver.connect(next(t for t in driver.find() if t.pid == engine.pid))
            times = ThreadTimes()

            def look() -> Snapshot:
                found = view.poll(1.0)
                return replace(found, columns={**times.read(found.topology), **found.columns})

            seen = deque([look()], maxlen=WINDOW)
            stood: dict[feasibility.Query, feasibility.Judgement] = {}
            enforce(schedule_of(node, policy, seen[0], stood=stood))
            if period_s := job.get("period_s"):
                deadline = time.monotonic()
                while engine.process.poll() is None:
                    deadline += period_s
                    time.sleep(max(0.0, deadline - time.monotonic()))
                    with unless_ended(engine.process):
                        since = seen[0] if job.get("measured") else None
                        seen.append(look())
                        then = seen[0] if job.get("only_starved") else None
                        act = job.get("only_starved") != "judged"
                        enforce(schedule_of(node, policy, seen[-1], since, then, told, act, stood))
        result: dict[str, Any] = json.loads(engine.results())
        result["verdicts"] = told
        took = time.monotonic() - began
        result["others"] = [(cpu_s(p) - u) / took for p, u in zip(others, used, strict=True)]
        result["report"] = report()
    return {"job": job["name"], "seed": job["seed"], **compact(result, job.get("targets", ()))}


def program(job: Job) -> dict[str, Any]:
    """What a program prints of its own threads (switches.c, helpers.c, waits.c), by name.

    It first prints their tids. operators: the first of these are a query's, from its ingress to its
    egress, and adopted; else all are, each a query of its own. counted: what the scheduler did
    meanwhile, of those counters that are not 0.
    """
    counted: dict[str, int] = {}
    with contextlib.ExitStack() as stack:
        child = stack.enter_context(
            subprocess.Popen(
                job["program"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        )
        assert child.stdout is not None
        lines = child.stdout
        tids = [int(line) for line in iter(lambda: next(lines).strip(), "ready")]
        if whose := job.get("trace"):
            followed = [child.pid if whose == "own" else os.getpid()]
            stacks = job.get("stacks", False)
            wakings = job.get("wakings", False)
            stack.enter_context(Stacks(followed) if stacks else Tracer(followed, wakings=wakings))
        if job["kind"] == "scx":
            full, cgroups = job.get("full", False), job.get("cgroups", False)
            tunables = job.get("tunables")
            scheduler = stack.enter_context(
                Scheduler(full=full, cgroups=cgroups, tunables=tunables)
            )
            operators = job.get("operators", 0)
            tids = tids[:operators] if operators else tids
            count = operators or job.get("queues", 1)
            scheduler.control["nr_queues"] = count
            scheduler.control["queues"]["slope"][:count] = 1 << np.arange(count)
            scheduler.slots[1 : len(tids) + 1]["queue"] = np.arange(len(tids)) % count
            if operators:
                scheduler.slots[1 : operators + 1]["query"] = 1
                scheduler.slots[1 : operators + 1]["depth"] = np.arange(1, operators + 1)
            scheduler.slots["flags"] = scheduler.slot_flags["SLOT_ACTIVE"]
            if leads := job.get("leads"):
                scheduler.slots["lead_us"][1 : len(leads) + 1] = leads
            if job.get("live"):
                rows = scheduler.live_rows(1, len(tids) + 1).rows
                rows["head_ns"] = time.monotonic_ns()
                for slot in range(1, len(tids) + 1):
                    scheduler.slots[slot]["live"] = scheduler.live_index(1, slot)
                    scheduler.slots[slot]["flags"] |= scheduler.slot_flags["SLOT_LIVE_AGE"]
            if job.get("adopt", True):
                for slot, tid in enumerate(tids, 1):
                    fd = thread_pidfd(tid)
                    scheduler.adopt(fd, slot)
                    os.close(fd)
                    os.sched_setscheduler(tid, SCHED_EXT, os.sched_param(0))
            scheduler.attach()
        elif job["kind"] == "batch":
            for tid in tids:
                os.sched_setscheduler(tid, os.SCHED_BATCH, os.sched_param(0))
        elif job["kind"] == "fifo":
            for tid in tids:
                os.sched_setscheduler(tid, os.SCHED_FIFO, os.sched_param(1))
        output, _ = child.communicate("\n", 60)
        if job["kind"] == "scx":
            in_force(scheduler)
            counted = {name: count for name, count in scheduler.stats().items() if count}
    figures = {name: float(figure) for name, figure in map(str.split, output.splitlines())}
    return {"job": job["name"], "seed": 0, "counted": counted, "figures": figures}


def calibrated(job: Job) -> dict[str, Any]:
    """What a hop costs under the job's scheduler, see `sim.calibrate`."""
    with contextlib.ExitStack() as stack:
        scheduler = None
        if job["kind"] == "scx":
            scheduler = stack.enter_context(Scheduler(full=False))
            scheduler.control["nr_queues"] = 12
            scheduler.control["queues"]["slope"][:12] = 1 << np.arange(12)
            scheduler.slots["queue"] = np.arange(len(scheduler.slots)) % 12
            scheduler.slots["flags"] = scheduler.slot_flags["SLOT_ACTIVE"]
            scheduler.attach()

        def ready(tids: Sequence[int]) -> None:
            for slot, tid in enumerate(tids, 1):
                if scheduler is not None:
                    fd = thread_pidfd(tid)
                    scheduler.adopt(fd, slot)
                    os.close(fd)
                    os.sched_setscheduler(tid, SCHED_EXT, os.sched_param(0))
                elif job["kind"] == "fifo":
                    os.sched_setscheduler(tid, os.SCHED_FIFO, os.sched_param(1))

        costs = calibrate.measure(ready, ["--burn", "nop"])
        if scheduler is not None:
            in_force(scheduler)
    return {"job": job["name"], "seed": 0, **asdict(costs)}


def compact(result: dict[str, Any], targets: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Without the histograms, and of single queries the means over those of class high.

    targets: tables of `Target`; by_query then has each query's share within its target, if it has
    one, and its departures; histograms how many had which latency, by names without their numbers.
    """
    if targets:
        result["by_query"] = [
            of_query(query, [Target(**target) for target in targets]) for query in result["queries"]
        ]
        result["histograms"] = added_up(result["queries"])
    for part in [result["total"], *result.get("classes", {}).values()]:
        for value in part.values():
            if isinstance(value, dict):
                value.pop("histogram", None)
    queries = result.pop("queries", [])
    high = [q for q in queries if q["class"] == "high" and q["departures"]]
    if count := sum(q["departures"] for q in high):
        for figure in ("latency_s", "slowdown"):
            total = sum(q["departures"] * q[figure]["mean"] for q in high)
            result[f"high_{figure}"] = total / count
    return result


def of_query(query: Mapping[str, Any], targets: Sequence[Target]) -> dict[str, Any]:
    latency, target = query["latency_s"], target_of(targets, query["name"])
    found = {"query": query["name"], "departures": query["departures"]}
    if target is not None and query["departures"]:
        met = sum(n for low_s, n in latency["histogram"] if low_s < target.latency_s)
        found |= {"target_s": target.latency_s, "met": met / query["departures"]}
    return found


def added_up(queries: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, int]]]:
    """Of each kind of query: the least latency (s) of each bucket, and how many tuples it has."""
    kinds: dict[str, Counter[float]] = {}
    for query in queries:
        kind = kinds.setdefault(query["name"].rstrip("0123456789"), Counter())
        for low_s, n in query["latency_s"]["histogram"]:
            kind[float(f"{low_s:.4g}")] += n
    return {kind: sorted(counts.items()) for kind, counts in kinds.items()}


def main() -> None:
    for line in Path(sys.argv[1]).read_text().splitlines():
        job = json.loads(line)
        began = time.monotonic()
        try:
            if job.get("calibrate"):
                found = calibrated(job)
            else:
                found = program(job) if "program" in job else run(job)
        except Exception as error:
            found = {"job": job["name"], "seed": job["seed"], "error": f"{error!r}"}
        print(PREFIX + json.dumps({**found, "guest_s": time.monotonic() - began}), flush=True)


if __name__ == "__main__":
    main()
