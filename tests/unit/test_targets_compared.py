"""Cameo's comparison in the simulator: what its program makes of runs."""

import math

import pytest

from bench.guest.targets import CASES
from bench.results import Figure
from bench.sim.targets import FIFO, OS, WAYS, Part, Run, rows_of, run


def test_rows_are_of_one_case_and_say_who_is_how_much_ahead() -> None:
    found = {
        Run("cameo", way, seed): {
            "alarm*": Part(0.5, (4.0 if way == FIFO else 1.0) * seed, 0.5, 2.0),
            "": Part(math.nan, 2.0 if way == OS else 6.0, 1.0 if way == OS else 0.5, 9.0),
        }
        for way in WAYS
        for seed in (1, 2)
    }
    rows = {row.name: row.figures for row in rows_of("cameo", found, (1, 2))}
    assert rows["cameo: alarm* in time"][OS] == Figure(50.0, 1.0, 1.0, "%")
    assert rows["cameo: alarm*, p50"][OS] == Figure(500.0, 1.0, 1.0, "ms")
    assert rows["cameo: alarm*, p99"][OS] == Figure(2000.0, 1.0, 1.0, "ms")
    ahead = rows[f"cameo: alarm*, mean of {FIFO} over it"]
    assert (ahead["scx auto"], ahead[FIFO]) == (Figure(4.0, 4.0, 4.0), Figure(1.0, 1.0, 1.0))
    assert rows[f"cameo: others, mean over {OS}"]["nice auto"] == Figure(3.0, 3.0, 3.0)
    assert rows[f"cameo: others, p50 over {OS}"]["nice auto"] == Figure(0.5, 0.5, 0.5)


@pytest.mark.needs("cc")
def test_targets_hold_by_auto_and_not_in_the_order_of_arrival() -> None:
    ours, fifo = (run(Run("impossible", way, 1)) for way in ("pool auto", FIFO))
    assert list(ours) == [*(str(t["queries"][0]) for t in CASES["impossible"].targets), ""]
    for pattern in ("alarm*", "report*"):
        assert ours[pattern].met > 0.99 > fifo[pattern].met
        assert ours[pattern].mean_s < fifo[pattern].mean_s
    assert ours["bulk0"].met == 0 and math.isnan(ours[""].met)
