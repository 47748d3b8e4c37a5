"""What the policies are for, on the lab engine, against the OS and against RANDOM.

In a guest with exact time, where the same run gives the same figures whatever the host does: the
runs are those of bench/kernel.py. bench/lab.py repeats them on the machine itself.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.kernel import BASE, FIGURES, jobs, run

pytestmark = [pytest.mark.vm, pytest.mark.needs("root", "qemu", "cc"), pytest.mark.timeout(900)]

KERNEL = "6.18"
SEEDS = 2
Ratios = dict[str, list[dict[str, float]]]  # variant -> for each seed, the ratios to EEVDF


@pytest.fixture(autouse=True)
def _kernel(kernel_image: Callable[[str], Path]) -> None:
    kernel_image(KERNEL)


def ratios(case: str, variants: list[str], seconds: float) -> Ratios:
    arguments = argparse.Namespace(seeds=SEEDS, first_seed=1, seconds=seconds, noise=0.0)
    results = list(run(jobs(case, [BASE, *variants], arguments), KERNEL))
    assert not [r["error"] for r in results if "error" in r]
    by = {(r["job"].split("/")[1], r["seed"]): r for r in results}
    found = {
        variant: [
            {name: f(by[variant, s]) / f(by[BASE, s]) for name, f in FIGURES.items()}
            for s in range(1, SEEDS + 1)
        ]
        for variant in variants
    }
    print(case, found)
    return found


def test_hr_cuts_the_mean_latency_of_many_queries_by_a_third() -> None:
    """Lachesis, section 6: by nice values, on SYN at 0.9. RANDOM shows that it is the order."""
    found = ratios("syn-0.9", ["nice-hr", "nice-random"], 5.0)
    for hr, random in zip(found["nice-hr"], found["nice-random"], strict=True):
        assert hr["mean"] <= 2 / 3
        assert hr["mean"] < 0.8 * random["mean"]
        assert hr["thr"] > 0.97


def test_qs_balances_the_queues_of_a_saturated_pipeline() -> None:
    """Lachesis, section 6, by nice values each second, on ETL at 1.0."""
    found = ratios("etl-1.0", ["nice-qs", "nice-random"], 5.0)
    for qs, random in zip(found["nice-qs"], found["nice-random"], strict=True):
        assert qs["mean"] < 0.9
        assert qs["mean"] < 0.9 * random["mean"]
        assert qs["qvar"] < 0.8
        assert qs["qvar"] < random["qvar"]


def test_an_interrupted_operator_drains_its_batch() -> None:
    """The source is a real-time thread: were each of its wake-ups a new decision of ours, LR would
    be worse than under EEVDF, with four fifths of its switches.
    """
    found = ratios("lr-0.95", ["scx-bsd"], 4.0)["scx-bsd"]
    assert max(bsd["cs"] for bsd in found) < 0.7
    # A guest's clock may leap while the engine starts, which lengthens latencies, not in every run.
    assert min(bsd["mean"] for bsd in found) < 0.8
