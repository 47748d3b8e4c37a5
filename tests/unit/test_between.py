"""What schedules weigh against each other (backends/scx/between.py)."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sched_ctl.backends.scx.between import Between, divided
from sched_ctl.backends.scx.weight import Lately
from sched_ctl.kernel import cgroup, procfs
from sched_ctl.model.topology import Thread

SYSTEM, USER, INNER = (Path(name) for name in ("/system", "/user", "/user/inner"))

Wants = Mapping[str, Mapping[tuple[Path, ...], float]]


def weight(folder: Path) -> float:
    return {SYSTEM: 1.0, USER: 1.0, INNER: 100.0}[folder]


def test_threads_of_one_cgroup_count_by_weight() -> None:
    assert divided({"a": {(): 20.0}, "b": {(): 1.0}}, weight) == pytest.approx(
        {"a": 20 / 21, "b": 1 / 21}
    )


def test_cgroups_count_by_their_own_weight_at_each_level() -> None:
    """However many threads, or however heavy a cgroup below: its part is that of those above it."""
    wants: Wants = {"a": {(SYSTEM,): 1.0}, "b": {(USER, INNER): 20.0}, "c": {(USER,): 1.0}}
    found = divided(wants, weight)
    assert found == pytest.approx({"a": 1 / 2, "b": 100 / 101 / 2, "c": 1 / 101 / 2})
    apart: Wants = {"a": {(): 1.0, (SYSTEM,): 3.0}, "b": {(): 2.0}}
    assert divided(apart, weight) == pytest.approx({"a": 1 / 2, "b": 1 / 2})


def test_a_cgroup_whose_threads_rarely_want_a_cpu_counts_as_little() -> None:
    wants: Wants = {"a": {(): 0.9, (SYSTEM,): 0.1}, "b": {(USER,): 5.0}}
    assert divided(wants, weight) == pytest.approx({"a": 1 / 2, "b": 1 / 2})
    idle: Wants = {"a": {(SYSTEM,): 0.0}, "b": {(): 1.0}}
    assert divided(idle, weight) == {"a": 0.0, "b": 1.0}


def test_who_sleeps_has_no_weight_and_who_is_new_that_of_one_thread() -> None:
    between = Between(lambda _: (), weight)
    scopes = {
        "a": tuple(Thread(1, 1 + nth, 0) for nth in range(20)),
        "b": tuple(Thread(2, 50 + nth, 0) for nth in range(1000)),
    }
    assert between.weights(scopes) == pytest.approx([1 / 2, 1 / 2])
    seen = Lately(
        np.arange(1, 1021),
        np.array([0.05] * 20 + [0.5] + [0.0] * 999),
        np.array([1.0] * 21 + [0.0] * 999),
        np.ones(1020),
        0.5,
    )
    between.look(scopes, seen)
    assert between.weights(scopes) == pytest.approx([20 / 21, 1 / 21])
    quiet = np.arange(1020) < 20
    cpu, wanted = np.where(quiet, 0.0, seen.cpu), np.where(quiet, 0.0, seen.wanted)
    between.look(scopes, replace(seen, cpu=cpu, wanted=wanted))
    # Of the first nothing new is known.
    assert between.weights(scopes) == pytest.approx([20 / 21, 1 / 21])
    assert between.weights({"a": scopes["a"]}) == [1.0]


def test_what_is_new_of_a_schedule_counts_by_and_by_wherever_its_threads_go() -> None:
    places = {1: (SYSTEM,), 2: (USER,)}
    between = Between(lambda pid: places[pid], weight)
    scopes = {"a": (Thread(1, 1, 0), Thread(2, 2, 0)), "b": (Thread(2, 3, 0),)}
    for cpu, there in (([0.5, 0.0, 0.5], 0.0), ([0.0, 0.5, 0.5], 0.5)):
        seen = Lately(np.array([1, 1, 2]), np.array(cpu), np.ones(3), np.ones(3), 0.5)
        between.look(scopes, seen)
        assert between._wants["a"] == pytest.approx({(SYSTEM,): 1 - there, (USER,): there})
    assert between._chains == places


def test_of_a_process_all_cgroups_that_have_a_weight_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = cgroup.Hierarchy(2, tmp_path)
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "cgroup.controllers").write_text("cpu memory")
    (tmp_path / "a/cpu.weight").write_text("250\n")
    (tmp_path / "a/b/cpu.weight").write_text("0\n")
    monkeypatch.setattr(cgroup, "hierarchies", lambda: (tree,))
    where = {1: tmp_path / "a/b/c", 2: tmp_path, 3: None}
    monkeypatch.setattr(cgroup.Hierarchy, "folder_of", lambda _, pid, tid, any_name: where[pid])
    assert cgroup.weighed(1) == (tmp_path / "a", tmp_path / "a/b")
    assert cgroup.weighed(2) == ()
    assert cgroup.weighed(3) == cgroup.UNSEEN and cgroup.relative_weight(*cgroup.UNSEEN) == 1.0
    assert cgroup.relative_weight(tmp_path / "a") == 2.5
    assert cgroup.relative_weight(tmp_path / "a/b") == 0.01
    assert cgroup.relative_weight(tmp_path / "gone") == 1.0


def test_nobody_leaves_his_cgroups_weight_by_how_he_nests_or_calls_what_is_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = cgroup.Hierarchy(2, tmp_path)
    (tmp_path / "user").mkdir()
    (tmp_path / "cgroup.controllers").write_text("cpu memory")
    (tmp_path / "user/cpu.weight").write_text("100\n")
    monkeypatch.setattr(cgroup, "hierarchies", lambda: (tree,))
    below = ""
    monkeypatch.setattr(procfs, "text", lambda _: f"0::/user/{below}\n")
    for below in ("\udcff", "x/" * 1000, "x/\udcff", "x" * 200 + "/y"):
        assert cgroup.weighed(1) == (tmp_path / "user",), below
    below = "/".join(["x" * 250] * 30)
    monkeypatch.setattr(cgroup, "MOST_LEVELS", 99)  # beyond the longest path that may be asked for
    assert cgroup.weighed(1) == cgroup.UNSEEN


def test_a_nice_value_inside_a_cgroup_is_no_rest() -> None:
    """The kernel gives a busy cgroup its whole weight, whatever its threads weigh."""
    between = Between({1: (SYSTEM,), 2: (USER,)}.__getitem__, weight)
    scopes = {"a": (Thread(1, 1, 0),), "b": (Thread(2, 2, 0),)}
    own = np.array([15 / 1024, 1.0])
    between.look(scopes, Lately(np.arange(1, 3), np.array([0.5, 0.5]), np.ones(2), own, 1.0))
    assert between.weights(scopes) == pytest.approx([1 / 2, 1 / 2])


def test_cgroups_are_read_when_something_new_is_known_and_not_in_each_pass() -> None:
    read: list[Path] = []

    def reading(folder: Path) -> float:
        read.append(folder)
        return weight(folder)

    between = Between(lambda _: (SYSTEM,), reading)
    scopes = {"a": (Thread(1, 1, 0),), "b": (Thread(2, 2, 0),)}
    for _ in range(3):
        assert between.weights(scopes) == pytest.approx([1 / 2, 1 / 2])
    assert read == [SYSTEM]
    between.look(scopes, Lately(np.array([1, 2]), np.full(2, 0.5), np.ones(2), np.ones(2), 1.0))
    assert between.weights(scopes) == pytest.approx([1 / 2, 1 / 2])
    assert read == [SYSTEM] * 2
    more = {**scopes, "c": (Thread(3, 3, 0), Thread(3, 4, 0))}
    assert between.weights(more) == pytest.approx([1 / 3] * 3)
    assert read == [SYSTEM] * 3
