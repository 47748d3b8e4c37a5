"""Flink's REST answers as rows and edges, and its counters as columns."""

import tracemalloc
from random import Random
from typing import cast

import numpy as np
import pytest

from sched_ctl.drivers.flink.metrics import TASK, HeadAge, Reading, RestAge
from sched_ctl.drivers.flink.plan import (
    Input,
    Job,
    Node,
    Nodes,
    Plan,
    Subtask,
    Vertex,
    VertexDetail,
    chain,
    plan,
)
from sched_ctl.drivers.flink.renewals import mixed
from sched_ctl.drivers.sources.http import Endpoint
from sched_ctl.drivers.sources.prometheus import Labels, Page
from sched_ctl.errors import EngineError
from sched_ctl.model.graph import Graph
from sched_ctl.model.topology import Edge
from support import growth

SCOPE = "flink_taskmanager_job_task_"


def job(name: str, *vertices: tuple[str, str, int, dict[str, str]], jid: str = "j1") -> Job:
    """vertices: (id, name, parallelism, {input: ship strategy})"""
    return Job(
        jid,
        name,
        [Vertex(i, title, parallelism) for i, title, parallelism, _ in vertices],
        Nodes([Node(i, [Input(*pair) for pair in inputs.items()]) for i, _, _, inputs in vertices]),
    )


def planned(*jobs: Job) -> Plan:
    details = {
        (one.jid, vertex.id): VertexDetail(
            [Subtask(i, 0, "RUNNING", "tm1") for i in range(vertex.parallelism)]
        )
        for one in jobs
        for vertex in one.vertices
    }
    return plan(jobs, details)


def test_who_has_no_slot_yet_is_not_on_another_machine() -> None:
    one = job("q", ("a", "Map", 2, {}))
    subtasks = [Subtask(0, 0, "SCHEDULED", "(unassigned)"), Subtask(1, 0, "RUNNING", "tm1")]
    made = plan([one], {(one.jid, "a"): VertexDetail(subtasks)})
    assert [row.task_manager for row in made.rows] == ["", "tm1"]


@pytest.mark.parametrize(
    ("name", "names", "edges"),
    [
        ("Map", ["Map"], []),
        ("Source: a -> b -> c: Writer", ["Source: a", "b", "c: Writer"], [(0, 1), (1, 2)]),
        ("a -> (b -> c, d)", ["a", "b", "c", "d"], [(0, 1), (1, 2), (0, 3)]),
        ("a -> (b -> (c, d), e)", ["a", "b", "c", "d", "e"], [(0, 1), (1, 2), (1, 3), (0, 4)]),
        ("f (x, y) -> (g), h", ["f (x, y)", "(g), h"], [(0, 1)]),
        ("[vertex-3]a -> b", ["a", "b"], [(0, 1)]),
        ("odd ) -> b", ["odd ) -> b"], []),
        ("", [""], []),
    ],
)
def test_chain(name: str, names: list[str], edges: list[tuple[int, int]]) -> None:
    assert chain(name) == (names, edges)


def test_a_long_chain_is_no_deep_recursion() -> None:
    assert len(chain(" -> ".join(f"op{i}" for i in range(5000)))[0]) == 5000


@pytest.mark.parametrize("seed", ["a -> (", "a -> (b, ", "a, ", "(", ")", "a -> "])
def test_a_name_is_taken_apart_in_linear_time(seed: str) -> None:
    def work(text: str) -> None:
        chain(text + ")" * text.count("("))

    assert growth(work, seed, 5000) < 9


def test_answers_that_contradict_themselves_are_refused() -> None:
    twice = job("q", ("a", "A", 1, {}), ("a", "B", 1, {}))
    with pytest.raises(EngineError, match="two vertices"):
        planned(twice)
    one = job("q", ("a", "A", 1, {}))
    with pytest.raises(EngineError, match="two jobs"):
        planned(one, one)
    with pytest.raises(EngineError, match="does not say"):
        plan([one], {})


def test_very_long_names_are_cut_and_noted() -> None:
    found = planned(job("j" * 9000, ("a", "A -> " * 2000, 1, {})))
    assert len(found.rows[0].query) == 4096 and len(found.rows[0].name) == 200
    assert "10000 characters" in found.notes[0]
    pair = planned(job("q", ("a", "A" * 300, 2, {}), ("b", "A" * 300 + "B", 2, {})))
    assert len({row.name for row in pair.rows}) == 4, "what was cut off told them apart"
    assert [row.task[300:] for row in pair.rows] == ["", "", "B", "B"]


def test_replicas_and_streams() -> None:
    made = planned(
        job(
            "q",
            ("s", "Source: s", 2, {}),
            ("f", "f", 2, {"s": "FORWARD"}),
            ("h", "h", 3, {"f": "HASH"}),
            ("b", "b", 2, {"h": "BROADCAST"}),
        )
    )
    assert [row.name for row in made.rows[:3]] == ["Source: s (1/2)", "Source: s (2/2)", "f (1/2)"]
    assert made.edges[:2] == (Edge(0, 2), Edge(1, 3))
    assert [e.share for e in made.edges if e.source == 2] == pytest.approx([1 / 3] * 3)
    assert [e.share for e in made.edges if e.source == 4] == [1, 1]
    assert made.source == (True, True, *[False] * 7)
    assert made.sink == (*[False] * 7, True, True)
    assert made.even[4:7] == (False,) * 3


def test_rescale_connects_groups() -> None:
    made = planned(job("q", ("a", "a", 4, {}), ("b", "b", 2, {"a": "RESCALE"})))
    assert [(e.source, e.target, e.share) for e in made.edges] == [
        (0, 4, 1),
        (1, 4, 1),
        (2, 5, 1),
        (3, 5, 1),
    ]
    made = planned(job("q", ("a", "a", 2, {}), ("b", "b", 4, {"a": "RESCALE"})))
    assert [(e.source, e.target, e.share) for e in made.edges] == [
        (0, 2, 0.5),
        (0, 3, 0.5),
        (1, 4, 0.5),
        (1, 5, 0.5),
    ]


def test_names_are_unique() -> None:
    made = planned(
        job("q", ("a", "Map", 1, {}), ("b", "Map -> Map", 1, {"a": "HASH"})),
        job("q", ("a", "Map", 1, {}), ("b", "Map", 1, {}), jid="j2"),
    )
    assert len({(row.query, row.name) for row in made.rows}) == len(made.rows) == 4
    assert len(set(made.logical)) == len(made.logical) == 5
    assert {row.query for row in made.rows} == {"q#j1", "q#j2"}


def test_a_forking_chain_with_several_ends_is_noted() -> None:
    made = planned(job("q", ("a", "a -> (b, c)", 1, {}), ("d", "d", 1, {"a": "HASH"})))
    assert [(e.source, e.target, e.share) for e in made.logical_edges] == [
        (0, 1, 1),
        (0, 2, 1),
        (1, 3, 0.5),
        (2, 3, 0.5),
    ]
    assert "does not tell which operator" in made.notes[0]


def test_a_job_takes_megabytes_at_most() -> None:
    """Any user's Flink may answer so, and the whole controller has 512 MB."""
    many = planned(job("q", ("a", "\N{ROCKET}" * 4096, 20_000, {})))
    assert sum(len(row.name) for row in many.rows) < 5_000_000
    with pytest.raises(EngineError, match="streams"):
        planned(job("q", ("a", "a", 500, {}), ("b", "b", 500, {"a": "HASH"})))


def test_too_much_is_refused() -> None:
    with pytest.raises(EngineError, match="at most"):
        planned(job("q", ("a", "a", 10**6, {})))
    many = job("q", ("a", "a", 9000, {}), ("b", "b", 9000, {"a": "HASH"}))
    with pytest.raises(EngineError, match="streams"):
        planned(many)
    endless = " -> ".join(["a"] * 800)
    with pytest.raises(EngineError, match="operators in all subtasks"):
        planned(job("q", ("a", endless, 1000, {})))
    with pytest.raises(EngineError, match="operators in all subtasks"):
        planned(job("q", *((str(i), endless, 0, {}) for i in range(1000))))


@pytest.mark.parametrize("name", ["a", "a -> (b, c, d)"])
def test_one_input_told_again_and_again_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its subtasks' edges or, where it has none, by its operators'."""
    monkeypatch.setattr("sched_ctl.drivers.flink.plan.EDGE_LIMIT", 100)
    count = 10 if name == "a" else 0
    vertices = [Vertex("a", name, count), Vertex("b", "b", count)]
    for times in (10, 50):
        nodes = Nodes([Node("b", [Input("a", "FORWARD")] * times)])
        if times == 10:
            assert len(planned(Job("j1", "q", vertices, nodes)).logical_edges) <= 50
            continue
        with pytest.raises(EngineError, match="more than 100 streams"):
            planned(Job("j1", "q", vertices, nodes))


class Fake:
    """A page made of {(family, vertex, subtask, operator): value}."""

    def __init__(self, values: dict[tuple[str, str, int, str], float]) -> None:
        self.labels = {
            key: Labels(
                {
                    "job_id": "j1",
                    "task_id": key[1],
                    "subtask_index": str(key[2]),
                    "task_attempt_num": "0",
                    "operator_name": key[3],
                }
            )
            for key in values
        }
        self.values = values

    def read(self, timeout_s: float) -> list[tuple[str, Labels, float]]:
        return [(SCOPE + key[0], self.labels[key], value) for key, value in self.values.items()]


def read(made: Plan, values: dict[tuple[str, str, int, str], float]) -> Reading:
    reading = Reading(made)
    reading.scrape(cast(Page, Fake(values)), 1)
    return reading


def test_gaps_of_the_counters_are_closed() -> None:
    made = planned(
        job("q", ("a", "Source: s -> m", 1, {}), ("b", "n -> w: Writer", 1, {"a": "HASH"}))
    )
    reading = read(
        made,
        {
            ("numRecordsIn", "a", 0, ""): 0,
            ("numRecordsOut", "a", 0, ""): 40,
            ("operator_numRecordsOut", "a", 0, "Source:_s"): 100,
            ("operator_numRecordsIn", "a", 0, "m"): 99,
            ("operator_numRecordsOut", "a", 0, "m"): 40,
            ("numRecordsIn", "b", 0, ""): 30,
            ("numRecordsOut", "b", 0, ""): 0,
            ("operator_numRecordsIn", "b", 0, "n"): 30,
            ("operator_numRecordsOut", "b", 0, "n"): 20,
            ("operator_numRecordsIn", "b", 0, "w:_Writer"): 20,
            ("operator_numRecordsOut", "b", 0, "w:_Writer"): 0,
        },
    )
    columns = reading.columns()
    assert columns["tuples_in"].tolist() == [100, 30]
    assert columns["tuples_out"].tolist() == [40, 20]
    assert columns["queue_size"][1] == 10
    assert np.isnan(columns["queue_size"][0])
    logical = reading.logical()
    assert logical["tuples_in"].tolist() == [100, 99, 30, 20]
    assert logical["tuples_out"].tolist() == [100, 40, 20, 20]


def test_values_stay_apart_when_a_page_is_forgotten() -> None:
    """The labels of a page that starts again are other objects, some at the old addresses."""
    n = 40
    made = planned(job("q", ("a", "A", n, {})))
    reading = Reading(made)
    source = Page(cast(Endpoint, None), [SCOPE + "numRecordsIn"])
    lines = [
        f'{SCOPE}numRecordsIn{{job_id="j1",task_id="a",subtask_index="{i}",'
        f'task_attempt_num="0"}} {i}'
        for i in range(n)
    ]
    random = Random(1)
    for _ in range(50):
        random.shuffle(lines)
        source._series.clear()  # as beyond the limit
        source.read = lambda timeout_s: source.samples("\n".join(lines))  # type: ignore[method-assign]
        reading.clear()
        reading.scrape(source, 1)
        assert reading._task[0].tolist() == list(range(n))


def test_labels_that_a_page_forgot_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sched_ctl.drivers.sources.prometheus.REMEMBERED", 100_000)
    reading = Reading(planned(job("q", ("a", "A", 1, {}))))
    source = Page(cast(Endpoint, None), [SCOPE + "numRecordsIn"])
    line = (
        f'{SCOPE}numRecordsIn{{job_id="j1",task_id="a",subtask_index="0",task_attempt_num="0",'
        f'junk="{"x" * 1000}%s"}} %s'
    )
    tracemalloc.start()
    try:
        for scrape in range(100):
            text = "\n".join(line % (1000 * scrape + i, scrape) for i in range(50))
            source.read = lambda timeout_s, text=text: source.samples(text)  # type: ignore[misc,method-assign]
            reading.scrape(source, 1)
            assert reading._task[0].tolist() == [scrape]
        assert tracemalloc.get_traced_memory()[0] < 2_000_000
    finally:
        tracemalloc.stop()


def test_committers_do_not_count() -> None:
    made = planned(job("q", ("a", "Source: s -> w: Writer -> w: Committer", 1, {})))
    reading = read(
        made,
        {
            ("operator_numRecordsOut", "a", 0, "Source:_s"): 100,
            ("operator_numRecordsIn", "a", 0, "w:_Writer"): 90,
            ("operator_numRecordsIn", "a", 0, "w:_Committer"): 1,
        },
    )
    assert reading.columns()["tuples_out"].tolist() == [90]


def test_queues_by_key_follow_the_buffers() -> None:
    made = planned(job("q", ("a", "a", 1, {}), ("b", "b", 2, {"a": "HASH"})))
    buffers = "Shuffle_Netty_Input_Buffers_inputQueueLength"
    values = {
        ("numRecordsOut", "a", 0, ""): 100.0,
        ("numRecordsIn", "b", 0, ""): 10.0,
        ("numRecordsIn", "b", 1, ""): 50.0,
        (buffers, "b", 0, ""): 3.0,
        (buffers, "b", 1, ""): 1.0,
    }
    assert read(made, values).columns()["queue_size"][1:].tolist() == [30, 10]


IN_LOCAL = "Shuffle_Netty_Input_numBuffersInLocal"
BUFFERS = "Shuffle_Netty_Input_Buffers_inputQueueLength"


def edges(*pairs: tuple[str, str]) -> list[Input]:
    return [Input(*pair) for pair in pairs]


def test_an_operator_that_feeds_several_sends_each_of_them_all() -> None:
    """Flink counts a record once, along however many edges it goes."""
    made = planned(
        job(
            "q",
            ("a", "Source: s -> split", 1, {}),
            ("b", "b", 1, {"a": "HASH"}),
            ("c", "c", 2, {"a": "HASH"}),
        )
    )
    assert [edge.share for edge in made.edges] == [1, 0.5, 0.5]
    values = {
        ("numRecordsOut", "a", 0, ""): 1000.0,
        ("operator_numRecordsOut", "a", 0, "split"): 998.0,  # a moment later
        ("numRecordsIn", "b", 0, ""): 990.0,
        ("numRecordsIn", "c", 0, ""): 400.0,
        ("numRecordsIn", "c", 1, ""): 600.0,
    }
    assert read(made, values).columns()["queue_size"][1:].tolist() == [10, 0, 0]


def join(parallelism: int = 1) -> Plan:
    """Nexmark q4 and q5 in short: one task feeds a join twice, by two ends of its chain."""
    title = "Source: bids -> (Calc[1] -> Local[2], Calc[3])"
    one = Job(
        "j1",
        "q",
        [Vertex("a", title, 1), Vertex("j", "Join[5] -> Calc[6]", parallelism)],
        Nodes([Node("a"), Node("j", edges(("a", "HASH"), ("a", "HASH")))]),
    )
    return planned(one)


def test_two_edges_between_the_same_two_share_the_output() -> None:
    made = join()
    assert [edge.share for edge in made.edges] == [0.5, 0.5]
    assert made.outputs == (2, 0)
    # With replicas, too: all that leaves the one arrives at the others
    assert sum(edge.share for edge in join(4).edges) == pytest.approx(1)


def test_the_queue_of_such_a_join_is_in_its_buffers_or_unknown() -> None:
    values = {
        ("numRecordsOut", "a", 0, ""): 30_000.0,
        ("operator_numRecordsOut", "a", 0, "Local[2]"): 600.0,
        ("operator_numRecordsOut", "a", 0, "Calc[3]"): 29_400.0,
        ("numRecordsIn", "j", 0, ""): 30_000.0,
    }
    assert np.isnan(read(join(), values).columns()["queue_size"][1])
    values |= {(IN_LOCAL, "j", 0, ""): 300.0, (BUFFERS, "j", 0, ""): 0.0}
    assert read(join(), values).columns()["queue_size"][1] == 0
    values[BUFFERS, "j", 0, ""] = 3.0
    assert read(join(), values).columns()["queue_size"][1] == 300


def test_a_task_with_another_way_out_is_not_taken_at_its_count() -> None:
    """Its only end sent less than the task: some operator before it feeds one of the two."""
    made = planned(
        job(
            "q",
            ("a", "Source: s -> f", 1, {}),
            ("b", "b", 1, {"a": "HASH"}),
            ("c", "c", 1, {"a": "HASH"}),
        )
    )
    values = {
        ("numRecordsOut", "a", 0, ""): 1500.0,
        ("operator_numRecordsOut", "a", 0, "f"): 500.0,
        ("numRecordsIn", "b", 0, ""): 500.0,
        ("numRecordsIn", "c", 0, ""): 1000.0,
    }
    assert np.isnan(read(made, values).columns()["queue_size"][1:]).all()


def test_a_sink_at_the_end_of_a_branch_feeds_nobody() -> None:
    made = planned(
        job("q", ("a", "Source: s -> (f, w: Writer)", 1, {}), ("b", "b", 1, {"a": "HASH"}))
    )
    assert [edge.share for edge in made.edges] == [1]
    assert made.notes == ()


def test_who_idles_has_no_queue_whatever_the_counts_say() -> None:
    """A side output swells the count of what was sent: found out by the consumer's idle time."""
    made = planned(job("q", ("a", "a", 1, {}), ("b", "b", 1, {"a": "HASH"})))
    reading = Reading(made)

    def pass_at(second: float, idle: float, sent: float) -> float:
        values = {
            ("numRecordsOut", "a", 0, ""): sent,
            ("numRecordsIn", "b", 0, ""): 100 * second,
            ("accumulateIdleTimeMs", "b", 0, ""): 1000 * idle * second,
            (BUFFERS, "b", 0, ""): 0.0,
            (IN_LOCAL, "b", 0, ""): 50 * second,
        }
        reading.scrape(cast(Page, Fake(values)), 1)
        return float(reading.columns(second)["queue_size"][1])

    # Busy and behind: believed. Idle with a short queue, too.
    assert [pass_at(t, 0.1, 1000 + 300 * t) for t in range(1, 15)][-1] == 1000 + 200 * 14
    assert reading.doubted == ()
    reading = Reading(made)
    assert [pass_at(t, 0.95, 50 + 100 * t) for t in range(1, 15)][-1] == 50
    # Idle, and the count grows for ever: the buffers are asked instead, and a remark says so.
    reading = Reading(made)
    seen = [pass_at(t, 0.95, 200 + 300 * t) for t in range(1, 15)]
    assert seen[1] == 600 and seen[-1] == 0
    assert reading.doubted == ("q/b",)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -5.0])
def test_odd_values_are_unknown(value: float) -> None:
    made = planned(job("q", ("a", "a", 1, {}), ("b", "b", 1, {"a": "HASH"})))
    reading = read(
        made,
        {
            ("numRecordsOut", "a", 0, ""): 5,
            ("numRecordsIn", "b", 0, ""): value,
            ("accumulateBusyTimeMs", "b", 0, ""): value,
        },
    )
    columns = reading.columns()
    for name in ("tuples_in", "busy_time", "queue_size"):
        assert np.isnan(columns[name][1])
    reading.clear()
    assert np.isnan(reading.columns()["tuples_out"]).all()


def test_the_age_of_what_the_job_manager_hands_on_is_seen() -> None:
    age = RestAge()
    assert [age.update(float(t), t // 10) for t in range(31)].count(True) == 1
    assert age.words == ", up to 10.0 s old as seen"
    assert not age.update(42.0, 99)  # 12 s are not worth another remark
    assert not age.update(43.0, 100)  # "up to": one fresh answer makes the others no fresher
    assert age.update(83.0, 101) and age.words == ", up to 40.0 s old as seen"
    for t in range(1, RestAge.LOOKED_AT):
        assert not age.update(83.0 + t, 101 + t)
    assert age.update(103.0, 200) and age.words == ", up to 1.0 s old as seen"


def test_a_queue_between_two_ways_of_reading_is_in_its_buffers() -> None:
    """What was sent is told from ten seconds ago, what was taken from now: no count of a queue."""
    made = planned(job("q", ("a", "A", 1, {}), ("b", "B", 1, {"a": "FORWARD"})))
    reading = Reading(made)
    names = [name.rpartition(".")[2] for name in TASK]
    for name, value in (("numRecordsOut", 900), ("numRecordsIn", 0)):
        reading.counters[names.index(name), 0] = value
    for name, value in (
        ("numRecordsIn", 1000),
        ("inputQueueLength", 4),
        ("numBuffersInLocal", 0),
        ("numBuffersInRemote", 50),
    ):
        reading.counters[names.index(name), 1] = value
    alike, apart = np.array([True, True]), np.array([True, False])
    assert reading.columns(0.0, alike)["queue_size"][1] == 0
    assert reading.columns(0.0, apart)["queue_size"][1] == 4 * 1000 / 50
    assert mixed(made, alike).tolist() == [False, False]
    assert mixed(made, apart).tolist() == [False, True]


def test_no_jobs() -> None:
    reading = Reading(planned())
    assert {len(column) for column in reading.columns().values()} == {0}
    assert {len(column) for column in reading.logical().values()} == {0}


def test_head_age() -> None:
    graph = Graph(3, np.array([0, 1]), np.array([1, 2]), np.ones(2))
    estimate = HeadAge(graph)
    nan = np.nan
    estimate.update(0.0, np.array([0.0, 0, 0]), np.array([nan, 0, 0]))
    age = estimate.update(1.0, np.array([100.0, 100, 100]), np.array([nan, 50, 20]))
    # 50 tuples at 100/s; 20 at 100/s behind those
    assert age[1:].tolist() == pytest.approx([0.5, 0.7])
    assert np.isnan(age[0])
    # the second stops: its head grows older by the second that passed, and so does what follows
    age = estimate.update(2.0, np.array([200.0, 100, 120]), np.array([nan, 150, 0]))
    assert age[1] == pytest.approx(1.5)
    assert age[2] == 0


def test_names_hold_no_format() -> None:
    """Hostile names go through as they are."""
    odd = "x\x00\n%2C,{} -> \"'"
    made = planned(job(odd, ("a", odd, 1, {})))
    assert made.rows[0].task == odd
    assert made.logical[0].query == odd


def test_a_cluster_that_is_too_large_to_be_asked_is_told_what_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 100.0

    class Slow:
        """Answers each question in 0.3 s, or not in time."""

        def get(self, path: str, timeout_s: float) -> None: ...

        def json(self, path: str, timeout_s: float, kind: object) -> list[object]:
            nonlocal now_s
            now_s += min(0.3, timeout_s)
            if timeout_s < 0.3:
                raise EngineError(f"{path} did not answer in time")
            return []

    monkeypatch.setattr("time.monotonic", lambda: now_s)
    monkeypatch.setattr("time.sleep", lambda _: None)
    made = planned(job("q", *((f"v{n}", f"Map {n}", 1, {}) for n in range(8))))
    asked = np.ones(len(made.rows), dtype=np.bool_)
    rest = cast(Endpoint, Slow())
    with pytest.raises(EngineError, match=r"^3 of 8 questions .* Prometheus .* poll_timeout$"):
        Reading(made).ask(rest, asked, now_s + 1.0)
    with pytest.raises(EngineError, match="did not answer in time"):  # it is slow, and not large
        Reading(made).ask(rest, asked, now_s + 0.1)
    Reading(made).ask(rest, asked, now_s + 9.0)
