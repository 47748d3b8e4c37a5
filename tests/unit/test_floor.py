"""An order starves nobody whom a fair share would serve: bpf/floor.h, with feedback.

A CPU is shared by the program's own arithmetic, natively compiled, in the default's order: who is
heavy goes last, by what queries used in the last seconds, which is what the order gave them.
"""

import ctypes
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from plans import plan
from sched_ctl.metrics import backlog
from sched_ctl.model.options import ScxOptions
from sched_ctl.model.policy import OperatorFrame, Query

pytestmark = pytest.mark.needs("cc")

SOURCE = Path(__file__).resolve().parents[1] / "orders" / "floor.c"
STRICT, FLOOR, FAIR = range(3)
BOUND_NS = round(ScxOptions().floor * 1e6)
STEP_S, TURN_S = 0.1, 0.0002
OF_CPU = 0.93  # the rest is the engine's own
STOPS_S, ENDS_S = 15.0, 65.0
AT_ONCE_S = 0.1  # a backlog of less input than this is none

Floats = NDArray[np.float64]
Kept = dict[str, Mapping[Query, float]]


@dataclass(frozen=True)
class Case:
    """Queries, each with its tuple's cost, s, and its input, tuples/s; infinite: saturated.

    stop_s: from STOPS_S on nobody gets the CPU for so long. gone_s: the query is away, while its
    input goes on. step: its input is so many times as much for 8 s. pauses: times at which nothing
    runs for .8 s.
    """

    what: str
    cost_s: tuple[float, ...]
    rate: tuple[float, ...]
    weight: tuple[float, ...] = ()
    query: int = 3
    stop_s: float = 0.0
    gone_s: float = 0.0
    step: float = 1.0
    pauses: tuple[float, ...] = ()

    def __str__(self) -> str:
        return self.what

    @property
    def begins_s(self) -> float:
        """When the backlog that is looked at begins to be worked off."""
        return STOPS_S + max(self.stop_s, self.gone_s, 8.0 if self.step > 1 else 0.0)


INF = float("inf")
# lone, burst, bulk, side: as seen on a real Flink
FOUR = Case("four", (0.0006, 0.0005, 0.0011, 0.0083), (60, 100, INF, 30))


def drawn(seed: int) -> Case:
    """One saturated query, one that falls behind and needs half its share, and light ones."""
    random = np.random.default_rng(seed)
    light = int(random.integers(1, 6))
    costs = random.lognormal(np.log(0.001), 1.0, light + 2)
    weight = (*np.ones(light), *random.choice([1.0, 1.3, 2.0], 2))
    loads = random.dirichlet(np.ones(light)) * 0.15
    own = (OF_CPU - 0.15) * weight[-2] / (weight[-2] + weight[-1])
    rates = np.append(loads, 0.55 * own) / costs[: light + 1]
    stop_s = float(random.uniform(2, 8))
    what = f"seed {seed}: {light} light ones"
    return Case(what, tuple(costs), (*rates, INF), weight, query=light, stop_s=stop_s)


CASES = (
    replace(FOUR, what="a stop of all", stop_s=10),
    replace(FOUR, what="a restart", gone_s=8),
    replace(FOUR, what="a step of load", step=2.0),
    replace(FOUR, what="pauses of a collector", stop_s=3, pauses=(19.0, 22.0, 25.0)),
    replace(FOUR, what="more threads", weight=(1, 1, 2, 2), stop_s=10),
    Case(
        "two saturated ones",
        (0.0006, 0.0005, 0.0011, 0.0083, 0.003),
        (60, 100, INF, 20, INF),
        stop_s=6,
    ),
    *(drawn(seed) for seed in range(6)),
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = tmp_path_factory.mktemp("floor") / "floor.so"
    subprocess.run(
        ["cc", "-O2", "-w", "-shared", "-fPIC", "-o", str(path), str(SOURCE)], check=True
    )
    loaded = ctypes.CDLL(str(path))
    array = np.ctypeslib.ndpointer
    loaded.floors_begin.argtypes = [ctypes.c_int64]
    loaded.floors_run.argtypes = [
        *(ctypes.c_int, ctypes.c_int, ctypes.c_double, ctypes.c_double, ctypes.c_int),
        *(array(np.int32), array(np.uint32), array(np.float64), array(np.float64), array(np.bool_)),
        *(array(np.float64),) * 3,
    ]
    return loaded


def places(
    seen: list[Floats], busy: Floats, names: list[str], case: Case, memory: Kept, lately: bool
) -> NDArray[np.int32]:
    """The order: heavy ones last, by what they used in the last 5 s; inside, the cheaper tuple.

    lately: who kept up until lately is not heavy.
    """
    topology = plan({name: ["a"] for name in names})
    used = np.mean(seen[-50:], axis=0) / STEP_S
    columns = {"cpu_use": used, "utilisation": busy}
    frame = OperatorFrame(topology.operators, topology.graph, columns, memory=dict(memory))
    now_s = len(seen) * STEP_S
    known = {backlog.MEMORY: backlog.seen(frame, now_s)}
    if lately:
        known[backlog.KEEPS_UP] = backlog.keeps_up(frame, now_s)
        known[backlog.LATELY] = backlog.kept_up(frame, now_s)
    memory.update(known)
    last = backlog.heavy(frame.remembering(dict(memory)))
    return np.argsort(np.lexsort((np.array(case.cost_s), last))).astype(np.int32)


def run(
    library: ctypes.CDLL, case: Case, how: int, *, lately: bool = False
) -> tuple[Floats, Floats]:
    """(steps, n) each: the backlog, in seconds of input, and the CPU time used so far, s."""
    n = len(case.cost_s)
    cost, rate = np.array(case.cost_s), np.array(case.rate)
    full = np.isinf(rate)
    input_ = np.where(full, 0.0, rate) * cost
    left = np.where(full, 1e9, 0.0)
    weight = (1024 * np.array(case.weight or (1.0,) * n)).astype(np.uint32)
    names = [f"q{i}" for i in range(n)]
    library.floors_begin(BOUND_NS)
    seen: list[Floats] = []
    lags: list[Floats] = []
    memory: Kept = {}
    place = np.arange(n, dtype=np.int32)
    busy = np.zeros(n)
    for step in range(round(ENDS_S / STEP_S)):
        now_s = step * STEP_S
        if step % 10 == 9:
            place = places(seen, busy / (10 * STEP_S / TURN_S), names, case, memory, lately)
            busy[:] = 0
        stopped = STOPS_S <= now_s < STOPS_S + case.stop_s
        stopped |= any(at <= now_s < at + 0.8 for at in case.pauses)
        there = np.ones(n, dtype=np.bool_)
        there[case.query] = not STOPS_S <= now_s < STOPS_S + case.gone_s
        now = input_.copy()
        if STOPS_S <= now_s < STOPS_S + 8:
            now[case.query] *= case.step
        used = np.zeros(n)
        turns = round(STEP_S / TURN_S)
        library.floors_run(
            n, turns, TURN_S, 0.0 if stopped else OF_CPU, how, place, weight, now, cost, there,
            left, used, busy,
        )  # fmt: skip
        seen.append(used)
        lags.append(np.where(full, INF, left / np.where(full, 1.0, input_)))
    return np.array(lags), np.cumsum(seen, axis=0)


def caught_up_s(lags: Floats, case: Case) -> float:
    """When the query had no backlog any more for good."""
    late = np.flatnonzero(lags[:, case.query] > AT_ONCE_S + case.cost_s[case.query] * 2)
    return float((late[-1] + 1) * STEP_S - case.begins_s) if len(late) else 0.0


@pytest.mark.parametrize("lately", [False, True], ids=["floor", "floor-lately"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_who_would_catch_up_at_its_fair_share_does(
    library: ctypes.CDLL, case: Case, lately: bool
) -> None:
    lags, used = run(library, case, FLOOR, lately=lately)
    fair_lags, fair = run(library, case, FAIR)
    usual_s, ours_s = caught_up_s(fair_lags, case), caught_up_s(lags, case)
    assert 0 < usual_s < ENDS_S - case.begins_s - 1, "the case shows nothing"
    assert ours_s <= 1.2 * usual_s + 2 * STEP_S
    # Nobody who has a backlog gets less than .9 of it, over any time of more than a few seconds.
    begin = round(case.begins_s / STEP_S)
    for i in np.flatnonzero(np.isinf(case.rate) | (np.arange(len(case.rate)) == case.query)):
        end = (
            len(used) - 1
            if np.isinf(case.rate[i])
            else begin + int(max(0.0, min(ours_s, usual_s)) / STEP_S)
        )
        ours, theirs = used[begin:end, i] - used[begin, i], fair[begin:end, i] - fair[begin, i]
        allowed_s = 2 * BOUND_NS * 1e-9 * max(case.weight or (1,))
        assert (ours >= 0.9 * theirs - allowed_s).all(), f"query {i}"


def test_who_kept_up_until_lately_is_not_behind_who_never_did(library: ctypes.CDLL) -> None:
    stop = CASES[0]
    usual_s = caught_up_s(run(library, stop, FAIR)[0], stop)
    assert caught_up_s(run(library, stop, FLOOR, lately=True)[0], stop) <= usual_s + STEP_S


def test_an_order_alone_starves(library: ctypes.CDLL) -> None:
    """Or the cases would show nothing."""
    stop = CASES[0]
    lags, used = run(library, stop, STRICT)
    assert caught_up_s(lags, stop) > ENDS_S - stop.begins_s - 1
    assert lags[-1, stop.query] > 20
    _, fair = run(library, stop, FAIR)
    since = round(stop.begins_s / STEP_S)
    gained = (used[-1] - used[since]) / (fair[-1] - fair[since])
    assert gained[stop.query] < 0.9 < 1.1 < gained[2]


def test_while_nobody_lags_by_the_bound_the_order_decides(library: ctypes.CDLL) -> None:
    light = Case("light", (0.001, 0.001, 0.001), (200, 200, INF), query=0)
    for with_it, alone in zip(run(library, light, FLOOR), run(library, light, STRICT), strict=True):
        assert (with_it == alone).all()
