"""Who is stopped by a limit on CPU time is told so, and not that a priority would help."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from plans import array, plan
from sched_ctl.kernel import cgroup
from sched_ctl.metrics.verdicts import assess
from sched_ctl.metrics.window import Window
from sched_ctl.model.topology import Snapshot, Topology
from sched_ctl.probes.clocks import Clocks
from sched_ctl.probes.limits import Limit, Limits
from sched_ctl.probes.waits import WaitTimes
from sched_ctl.service import bottlenecks
from sched_ctl.service.bottlenecks import Found

Counts = tuple[int, int]


class Tree:
    """A container of 1.5 CPUs with groups of .5 CPUs and without a limit, and one beside it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        paths = {1: "all/small", 2: "all/free", 3: "beside"}
        self.tell("all", "150000 100000")
        self.tell("all/small", "50000 100000")
        self.tell("all/free", "max 100000")
        self.tell("beside", "max 100000")

        def with_cpu(pid: int) -> tuple[Path, ...]:
            own = root / paths.get(pid, ".")
            return tuple(one for one in (own, *own.parents) if one.is_relative_to(root))

        monkeypatch.setattr(cgroup, "with_cpu", with_cpu)

    def tell(self, group: str, limit: str | None = None, counts: Counts | None = None) -> None:
        folder = self.root / group
        folder.mkdir(parents=True, exist_ok=True)
        if limit is not None:
            (folder / "cpu.max").write_text(f"{limit}\n")
        if counts is not None:
            text = "usage_usec 4\nnr_periods {}\nnr_throttled {}\nthrottled_usec 9\n"
            (folder / "cpu.stat").write_text(text.format(*counts))


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    return Tree(tmp_path, monkeypatch)


def seen(tree: Tree, readings: dict[float, dict[str, Counts]]) -> dict[int, Limit | None]:
    """What is said of each process after readings at these times."""
    limits = Limits()
    for time_s, told in readings.items():
        for group, counts in told.items():
            tree.tell(group, counts=counts)
        limits.look((1, 2, 3, 4), time_s)
    return {pid: limits.of({pid}) for pid in (1, 2, 3, 4)}


def test_the_limit_that_stopped_most_often_is_told(tree: Tree) -> None:
    counts = {0.0: {"all": (100, 90), "all/small": (100, 0), "beside": (100, 50)}}
    counts[2.0] = {"all": (120, 95), "all/small": (120, 15), "beside": (120, 70)}
    found = seen(tree, counts)
    assert found == {1: Limit(0.5, 0.75), 2: Limit(1.5, 0.25), 3: None, 4: None}


def test_a_limit_of_long_ago_is_forgotten(tree: Tree) -> None:
    at = {second / 2: {"all": (5 * second, min(5 * second, 20))} for second in range(20)}
    assert seen(tree, dict(list(at.items())[:6]))[2] == Limit(1.5, 0.75)
    assert seen(tree, at)[2] is None


@pytest.mark.parametrize(
    "then",
    [(118, 100), (900, 900), (20, 0), (100, 115), None],
    ids=["too few periods", "another cgroup", "a later one", "made anew", "its first reading"],
)
def test_what_is_not_known_is_not_said(tree: Tree, then: Counts | None) -> None:
    first = {} if then is None else {"all": then}
    assert seen(tree, {0.0: first, 2.0: {"all": (120, 110)}})[2] is None


@pytest.mark.parametrize(
    "text", ["", "nr_periods 5\n", "nr_periods x\nnr_throttled y\n", "a b c\n"]
)
def test_a_page_that_nobody_understands_says_nothing(tree: Tree, text: str) -> None:
    limits = Limits()
    for time_s in (0.0, 2.0):
        (tree.root / "all/cpu.stat").write_text(text)
        limits.look((2,), time_s)
    assert limits.of((2,)) is None


def test_where_there_is_no_limit_nobody_waits_for_a_second_reading(tree: Tree) -> None:
    free, limited = Limits(), Limits()
    assert not free.ready
    free.look((3,), 0.0)
    limited.look((2, 3), 0.0)
    assert free.ready and not limited.ready
    limited.look((2, 3), 0.6)
    assert limited.ready


def test_who_has_not_looked_for_long_waits_for_a_second_reading(tree: Tree) -> None:
    """What was an hour ago is neither told with the limit of now, nor hides what is now."""
    limits = Limits()
    for time_s, counts in ((0.0, (100, 0)), (0.5, (105, 0)), (3600.0, (36000, 0))):
        tree.tell("all", counts=counts)
        limits.look((2,), time_s)
    assert not limits.ready and limits.of((2,)) is None
    tree.tell("all", counts=(36005, 5))
    limits.look((2,), 3600.5)
    assert limits.ready and limits.of((2,)) == Limit(1.5, 1.0)


def test_who_asks_now_and_then_is_told_of_periods_of_any_length(tree: Tree) -> None:
    limits = Limits()
    for second in (0, 3, 18, 29, 41):  # of .2 s, and each time nobody waits for a second reading
        tree.tell("all", counts=(5 * second, 4 * second))
        limits.look((2,), float(second))
        assert second == 0 or (limits.ready and limits.of((2,)) == Limit(1.5, 0.8))


def test_who_asks_all_the_time_is_told_of_periods_of_a_second(tree: Tree) -> None:
    assert seen(tree, {half / 2: {"all": (half // 2, half // 2)} for half in range(8)})[2] == Limit(
        1.5, 1.0
    )


def test_what_another_limit_did_is_not_said_of_this_one(tree: Tree) -> None:
    limits = Limits()
    for time_s, cpus, counts in ((0.0, 5, (0, 0)), (3.0, 5, (30, 30)), (6.0, 15, (60, 33))):
        tree.tell("all", f"{cpus}0000 100000", counts)
        limits.look((2,), time_s)
    assert limits.of((2,)) is None
    tree.tell("all", counts=(90, 42))
    limits.look((2,), 9.0)
    assert limits.of((2,)) == Limit(1.5, 0.3)


def test_a_cgroup_that_came_is_waited_for(tree: Tree) -> None:
    limits = Limits()
    for time_s, counts in ((0.0, (100, 0)), (3.0, (130, 0))):
        tree.tell("all", counts=counts)
        limits.look((2,), time_s)
    tree.tell("all/small", counts=(20, 20))
    limits.look((1, 2), 6.0)
    assert not limits.ready
    limits.look((1, 2), 6.5)
    assert limits.ready


def test_two_looks_at_once_are_one(tree: Tree) -> None:
    limits = Limits()
    for time_s, counts in ((0.0, (0, 0)), (2.0, (20, 10)), (2.1, (40, 30))):
        tree.tell("all", counts=counts)
        limits.look((2,), time_s)
    assert limits.of((2,)) == Limit(1.5, 0.5)


@dataclass
class Stopped(Limits):
    """As if all processes were in one cgroup that was stopped so often."""

    share: float

    pids: frozenset[int] | None = None  # of whose processes; None: all

    def of(self, pids: Iterable[int]) -> Limit | None:
        stopped = self.pids is None or not self.pids.isdisjoint(pids)
        return Limit(0.5, self.share) if stopped else None


@dataclass
class Engine:
    limits: Limits
    clocks: Clocks = field(default_factory=Clocks)
    name: str = "e"
    said: dict[str, Any] = field(default_factory=dict)


def starved(engine: Any, topology: Topology) -> Found:
    """Its last operator, which waits for a CPU for eight tenths of the time while its queue grows;
    others have nothing to do.
    """

    def at(time_s: float) -> Snapshot:
        others = [0.0] * (len(topology.operators) - 1)
        columns = {
            "thread_cpu_time": array(*others, 0.2 * time_s),
            "run_delay": array(*others, 0.8 * time_s),
            "idle_time": array(*(time_s for _ in others), 0.0),
            "tuples_in": array(*others, 100 * time_s),
            "queue_size": array(*others, 100 * time_s),
        }
        return Snapshot(topology, time_s, columns)

    window = Window(at(14.0), at(10.0))
    return Found(engine, window, assess(window), WaitTimes())


@pytest.mark.parametrize(("share", "helps"), [(0.7, "larger limit"), (0.02, "larger priority")])
def test_advice_is_for_what_stops_it(share: float, helps: str) -> None:
    """Of one that waits for a CPU for eight tenths of the time, while its queue grows."""
    engine: Any = Engine(Stopped(share))
    [query] = bottlenecks.bottlenecks([starved(engine, plan({"q": ["a"]}))])
    assert query["verdict"] == "cpu-starved" and helps in query["advice"]
    [operator] = query["operators"]
    assert f"stopped in {share:.0%} of the periods" in bottlenecks.words(operator)
    assert query["limit"] == operator["limit"] == {"cpus": 0.5, "stopped": share}


def test_a_limit_on_another_process_of_the_query_is_not_to_blame() -> None:
    topology = plan({"q": ["a", "b"]})
    first, last = topology.operators
    elsewhere = replace(last, threads=tuple(replace(thread, pid=2) for thread in last.threads))
    engine: Any = Engine(Stopped(0.7, frozenset({1})))
    found = starved(engine, replace(topology, operators=(first, elsewhere)))
    [query] = bottlenecks.bottlenecks([found])
    assert query["operator"] == "q/b" and query["limit"] is None
    assert query["verdict"] == "cpu-starved" and "larger priority" in query["advice"]
