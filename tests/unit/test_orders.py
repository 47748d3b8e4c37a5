"""One table of orders, which whoever enforces urgency forms must follow.

The policy's own reading, the BPF program (its arithmetic, compiled natively, by the hints that the
scx backend would write), the lab engine's pool, the simulator, and nice values.
"""

import ctypes
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from plans import LIMITS
from sched_ctl.backends.pool import stacked
from sched_ctl.backends.scx.hints import hints, merged
from sched_ctl.model.graph import Array
from sched_ctl.model.normalise import nice_values
from sched_ctl.model.policy import Spacing, UrgencyForm
from sched_ctl.model.schedule import Schedule
from sched_ctl.model.topology import Thread
from sched_ctl.model.unknown import known, known_form
from sched_ctl.sim.forms import grouped

pytestmark = pytest.mark.needs("cc")

HERE = Path(__file__).resolve().parents[1] / "orders"
NOW_S = 1000.0
NAN, INF = float("nan"), float("inf")


@dataclass(frozen=True)
class Op:
    """An operator: its form, its head age (s), its queue size (tuples)."""

    name: str
    static: float = 0.0
    rank: float = 0.0
    per_second: float = 0.0
    per_tuple: float = 0.0
    age: float = 0.0
    queue: float = 1.0


@dataclass(frozen=True)
class Case:
    """Operators, the most urgent first. measured: ages and queues are those that were measured,
    and unknown to a controller; who sees them itself has no such case."""

    what: str
    operators: tuple[Op, ...]
    measured: bool = field(default=False)

    def __str__(self) -> str:
        return self.what


TABLE = (
    Case("static", (Op("b", 9), Op("c", 7), Op("a", 5))),
    Case("static, far apart and below 0", (Op("a", 1e9), Op("b", 3), Op("c", -3), Op("d", -1e9))),
    Case("static, whatever the ages", (Op("a", 2, age=0.1), Op("b", 1, age=0.9))),
    Case("ages", tuple(Op(f"{age}", per_second=1, age=age) for age in (3.0, 2.0, 0.5))),
    Case(
        "stretch: slope times age",
        (
            Op("steep", per_second=100, age=0.5),
            Op("old", per_second=1, age=10),
            Op("young", per_second=1, age=2),
            Op("steep, just come", per_second=100, age=0.001),
        ),
    ),
    Case(
        "without slope behind those with one",
        (
            Op("a", per_second=5, age=0.2),
            Op("b", per_second=1, age=0.2),
            Op("c", age=0.9),
        ),
    ),
    Case("queues", tuple(Op(f"{size}", per_tuple=1, queue=size) for size in (40, 7, 3))),
    Case(
        "what the queue makes more urgent",
        (Op("a", 1, per_tuple=3, queue=9), Op("b", 20, per_tuple=3, queue=1)),
    ),
    Case(
        "a mixed form",
        (
            Op("a", 5, per_second=2, age=3.0),
            Op("b", 10, per_second=2, age=0.25),
            Op("c", 5, per_second=2, age=0.25),
        ),
    ),
    Case(
        "ranks before all else",
        (
            Op("a", -9, rank=2),
            Op("b", 9, rank=1, age=0.1),
            Op("c", 1, rank=1, age=0.9),
            Op("d", 1e9, rank=0),
        ),
    ),
    Case(
        "ranks with ages inside",
        (
            Op("a", rank=1, per_second=100, age=0.1),
            Op("b", rank=1, per_second=1, age=2.0),
            Op("c", rank=0, per_second=1000, age=9.0),
        ),
    ),
    Case(
        "the least slack",  # targets of 50 ms, 2 s and 60 s
        (
            Op("late", -0.049, per_second=1, age=0.2),
            Op("near its end", -2.0, per_second=1, age=1.97),
            Op("fresh", -0.049, per_second=1, age=0.001),
            Op("a minute", -60.0, per_second=1, age=59.9),
            Op("far from it", -2.0, per_second=1, age=0.5),
        ),
    ),
    Case(
        "the least slack, above what is far larger in another rank",
        (
            Op("near its end", -2.0, rank=2, per_second=1, age=1.9999),
            Op("fresh", -0.0499, rank=2, per_second=1, age=0.0001),
            Op("fresh, and further on", -0.0501, rank=2, per_second=1, age=0.0001),
            Op("many results", 1e6, rank=1, per_second=5e7, age=0.5),
            Op("few results", 2e3, rank=1, per_second=1e3, age=0.5),
            Op("heavy", 1e5, rank=0, per_second=1e5, age=0.9),
        ),
    ),
    Case(
        "the least slack, above what never gains",
        (
            Op("near its end", -2.0, rank=2, per_second=1, age=1.9999),
            Op("fresh", -0.0499, rank=2, per_second=1, age=0.0001),
            Op("b", 1e6, rank=1, age=0.5),
            Op("a", 2e3, rank=1, age=0.9),
        ),
    ),
    Case("equal: the oldest", tuple(Op(f"{age}", 4, age=age) for age in (0.5, 0.3, 0.1))),
    Case(
        "equal in one rank: the oldest",
        (Op("z", 1, rank=3), *(Op(f"{age}", 4, rank=2, age=age) for age in (0.5, 0.3, 0.1))),
    ),
    Case("unknown: in the middle", (Op("b", 3), Op("u", NAN), Op("a", 1))),
    Case(
        "unknown: in the middle of places, not of the range",
        (Op("d", 100), Op("c", 5), Op("u", NAN), Op("b", 2), Op("a", 1)),
    ),
    Case(
        "of unknown slope, and older: it gains as the middle one does",
        (
            Op("u", per_second=NAN, age=4),
            Op("b", per_second=3, age=1),
            Op("a", per_second=1, age=1),
        ),
    ),
    Case(
        "of unknown slope, and younger",
        (
            Op("b", per_second=30, age=1),
            Op("a", per_second=1, age=8),
            Op("u", per_second=NAN, age=0.01),
        ),
    ),
    Case(
        "unknown in one part: unknown as a whole",
        (Op("b", 3), Op("u", 1000, per_second=NAN, age=0.1), Op("a", 1)),
    ),
    Case(
        "unknown: in the middle of its rank",
        (
            Op("c", 30, rank=1),
            Op("u", NAN, rank=1),
            Op("b", 10, rank=1),
            Op("z", 1000),
            Op("y", 1),
        ),
    ),
    Case(
        "unknown rank: the middle one",
        (Op("c", rank=2), Op("u", 5, rank=NAN), Op("b", 3, rank=1), Op("a", 9, rank=0)),
    ),
    Case(
        "unknown rank: between two",
        (Op("b", 1, rank=1), Op("u", 5, rank=NAN), Op("a", 9, rank=0)),
    ),
    Case("all unknown: the oldest", tuple(Op(f"{age}", NAN, age=age) for age in (0.5, 0.3, 0.1))),
    *(
        Case(f"{value}: in the middle", (Op("b", 9), Op("u", value), Op("a", 5)))
        for value in (INF, -INF)
    ),
    Case(
        "infinite, with ages",
        (
            Op("b", per_second=4, age=1),
            Op("u", per_second=INF, age=1),
            Op("a", per_second=2, age=1),
        ),
    ),
    Case(
        "of unknown queue: in the middle",
        (
            Op("b", per_tuple=1, queue=30),
            Op("u", per_tuple=1, queue=NAN),
            Op("a", per_tuple=1, queue=3),
        ),
        measured=True,
    ),
)

Orderer = Callable[[UrgencyForm, Array, Array], list[int]]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = tmp_path_factory.mktemp("orders") / "orders.so"
    sources = sorted(map(str, HERE.glob("*.c")))
    subprocess.run(
        ["cc", "-O1", "-w", "-shared", "-fPIC", "-o", str(path), *sources, "-lm"], check=True
    )
    return ctypes.CDLL(str(path))


def pointer(column: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(column.ctypes.data)


def schedule(form: UrgencyForm, age: Array, queue: Array) -> Schedule:
    n = len(form)
    threads = tuple(Thread(1, i + 1, 0) for i in range(n))
    labels = tuple(f"q/{i}" for i in range(n))
    return Schedule("s", "p", Spacing.LINEAR, threads, labels, form, age, queue)


def by_policy(form: UrgencyForm, age: Array, queue: Array) -> list[int]:
    sure = known(form, age, queue)
    return [int(row) for row in np.lexsort((-age, -sure.urgency(), -sure.form.rank))]


@pytest.fixture
def by_bpf(library: ctypes.CDLL) -> Orderer:
    def order(form: UrgencyForm, age: Array, queue: Array) -> list[int]:
        n = len(form)
        made = merged([(0, part) for part in hints(schedule(form, age, queue), LIMITS)], n, LIMITS)
        slots = np.array([made.lead_us, made.queue, made.base, made.slope, made.per_tuple])
        queues = np.array([made.queue_base, made.queue_slope, made.queue_exact])
        slots, queues = slots.astype(np.uint64), queues.astype(np.uint64)
        origin = ((NOW_S - age) * 1e9).astype(np.uint64)
        tuples, found = np.nan_to_num(queue).astype(np.uint64), np.zeros(n, dtype=np.int64)
        library.bpf_order(
            ctypes.c_int64(n),
            pointer(slots),
            ctypes.c_int64(queues.shape[1]),
            pointer(queues),
            pointer(origin),
            pointer(tuples),
            ctypes.c_uint64(int(NOW_S * 1e9)),
            pointer(found),
        )
        return found.tolist()

    return order


@pytest.fixture
def by_pool(library: ctypes.CDLL) -> Orderer:
    def order(form: UrgencyForm, age: Array, queue: Array) -> list[int]:
        n = len(form)
        columns = stacked(known_form(form))
        due, tuples = ((NOW_S - age) * 1e9).astype(np.uint64), queue.astype(np.uint64)
        found = np.zeros(n, dtype=np.int64)
        library.pool_order(
            ctypes.c_int64(n),
            pointer(columns),
            pointer(tuples),
            pointer(due),
            ctypes.c_uint64(int(NOW_S * 1e9)),
            pointer(found),
        )
        return found.tolist()

    return order


@pytest.fixture
def by_simulator(library: ctypes.CDLL) -> Orderer:
    def order(form: UrgencyForm, age: Array, queue: Array) -> list[int]:
        n = len(form)
        made = grouped(form)
        columns = (made.fixed, made.per_tuple, made.group_of)
        of_groups = (made.per_second, made.rank, made.turns)
        origin, found = NOW_S - age, np.zeros(n, dtype=np.int64)
        library.sim_order(
            ctypes.c_int64(n),
            *(pointer(column) for column in columns),
            ctypes.c_int64(len(made.rank)),
            *(pointer(column) for column in of_groups),
            pointer(origin),
            pointer(queue),
            ctypes.c_double(NOW_S),
            pointer(found),
        )
        return found.tolist()

    return order


def columns_of(operators: tuple[Op, ...]) -> tuple[UrgencyForm, Array, Array]:
    def column(name: str) -> Array:
        return np.array([getattr(operator, name) for operator in operators], dtype=np.float64)

    parts = (column(name) for name in ("rank", "static", "per_second", "per_tuple"))
    return UrgencyForm(*parts), column("age"), column("queue")


def shuffles(operators: tuple[Op, ...]) -> Iterator[tuple[Op, ...]]:
    """In several orders, or a place in the table would be as good as an urgency."""
    yield operators
    yield operators[::-1]
    random = np.random.default_rng(len(operators))
    for _ in range(3):
        yield tuple(operators[i] for i in random.permutation(len(operators)))


@pytest.mark.parametrize("case", TABLE, ids=str)
def test_all_follow_the_table(
    case: Case, by_bpf: Orderer, by_pool: Orderer, by_simulator: Orderer
) -> None:
    expected = [operator.name for operator in case.operators]
    followers = {"policy": by_policy, "bpf": by_bpf}
    if not case.measured:
        followers |= {"pool": by_pool, "simulator": by_simulator}
    for operators in shuffles(case.operators):
        form, age, queue = columns_of(operators)
        for name, follower in followers.items():
            found = [operators[row].name for row in follower(form, age, queue)]
            assert found == expected, name
        nice = dict(
            zip((o.name for o in operators), nice_values(schedule(form, age, queue)), strict=True)
        )
        values = [int(nice[name]) for name in expected]
        assert values == sorted(values), "nice"
        told_apart = not case.what.startswith(("equal: ", "all unknown"))
        assert (values[0] < values[-1]) == told_apart, "nice"


def test_at_one_age_a_tie_goes_to_who_gains_most(by_pool: Orderer, by_simulator: Orderer) -> None:
    """Tuples that came just now have urgency 0 under a policy of ages, whatever they are worth.

    Queues of the BPF program are not held to it.
    """
    tied = tuple(Op(f"{slope}", per_second=slope) for slope in (9.0, 4.0, 1.0))
    for operators in shuffles((Op("first", 5, per_second=2), *tied)):
        form, age, queue = columns_of(operators)
        for follower in (by_pool, by_simulator):
            found = [operators[row].name for row in follower(form, age, queue)]
            assert found == ["first", "9.0", "4.0", "1.0"]


@pytest.mark.parametrize("seed", range(20))
def test_all_agree_on_random_forms(
    seed: int, by_bpf: Orderer, by_pool: Orderer, by_simulator: Orderer
) -> None:
    """With ranks and unknown parts. The BPF program rounds ages; statics are places, and exact."""
    random = np.random.default_rng(seed)
    n = int(random.integers(2, 40))

    def some(values: Array, share: float) -> Array:
        return np.where(random.random(n) < share, NAN, values)

    rank = some(random.integers(0, 3, n).astype(float), 0.1)
    static = some(random.normal(size=n) * 10 ** random.uniform(-3, 3), 0.2)
    age, queue = random.random(n) * 0.9, random.integers(0, 100, n).astype(float)
    still = UrgencyForm(rank, static, np.zeros(n), np.zeros(n))
    expected = by_policy(still, age, queue)
    assert by_bpf(still, age, queue) == expected
    slope, per_tuple = some(random.random(n), 0.1), some(random.random(n), 0.1)
    for form in (still, UrgencyForm(rank, static, slope, per_tuple)):
        expected = by_policy(form, age, queue)
        assert by_pool(form, age, queue) == expected
        assert by_simulator(form, age, queue) == expected
