"""Verdicts on lab engines with a cause in them that is known."""

import json
import os
import statistics

import pytest
from labs import sched_ctl
from planted import causes, hogs, limited
from watching import observed, share, undisturbed

from sched_ctl.adapt.parallelism import LEAP
from sched_ctl.drivers.lab.driver import kind
from support import disturbed

pytestmark = [pytest.mark.host, pytest.mark.needs("root", "cc")]

WINDOWS = 20


@pytest.mark.needs("two_cpus")  # one for the heavy operator, one for all others
def test_each_cause_is_named_in_nineteen_of_twenty_windows() -> None:
    for _ in range(3):
        with causes(nice=-20) as target:
            assert target.pid is not None
            seen = undisturbed(target, kind, WINDOWS, "heavy/crunch", target.pid, "crunch")
        if seen is not None:
            break
    else:
        disturbed("others took the CPU of the heavy operator")
    assert len(seen["heavy"]) == WINDOWS
    assert share(seen, "heavy/crunch", "single-thread-bound") >= 0.95
    for before in ("heavy/in", "heavy/parse"):
        assert share(seen, before, "backpressured by heavy/crunch") >= 0.95
    assert share(seen, "waits/lookup", "io-bound") >= 0.95
    assert share(seen, "heavy", "single-thread-bound") >= 0.95
    # It has time to spare all the same.
    assert share(seen, "waits", "keeps-up") >= 0.95
    assert share(seen, "light", "keeps-up") >= 0.95
    assert all(query["settled"] for query in seen["heavy"])
    # It sleeps for up to 8 ms a tuple, and for input at a futex meanwhile.
    told = [o["sleeps"] for o in seen["waits/lookup"]]
    assert all(sleeps is not None and sleeps["looks"] >= 10 for sleeps in told)
    most = [sleeps["places"][0] for sleeps in told]
    at_timer = [place["where"] == "timer" for place in most]
    assert statistics.fmean(at_timer) >= 0.95, [sleeps["looks"] for sleeps in told]
    assert statistics.median(place["share"] for place in most) > 0.85
    assert all(o["sleeps"] is None for o in seen["heavy/crunch"])
    for quiet in ("quiet/listen", "quiet/act", "quiet"):
        assert share(seen, quiet, "idle") == 1.0
    # The others keep up; whatever else this machine does may make them wait for a CPU.
    for light in ("light/read", "light/work", "light/write", "waits/ask", "waits/answer"):
        assert share(seen, light, "input-bound", "cpu-starved") == 1.0


def test_operators_beside_hogs_are_starved() -> None:
    cpu = max(os.sched_getaffinity(0))
    with causes(nice=0, cpus={cpu}) as target, hogs(4, cpu):
        seen = observed(target, kind, WINDOWS)
    assert share(seen, "heavy/crunch", "cpu-starved") >= 0.95
    # A tenth of a CPU may be just enough beside four hogs, or not: then it falls behind.
    assert share(seen, "light/work", "input-bound", "cpu-starved") == 1.0
    assert share(seen, "quiet", "idle") == 1.0
    waits = [o["wait"] for o in seen["heavy/crunch"]]
    assert min(waits) > 0.3  # of five that want the CPU all the time, one gets a fifth or less


@pytest.mark.needs("cgroup1_cpu")
def test_who_is_stopped_by_the_limit_of_its_cgroup_is_told_to_raise_it() -> None:
    with causes(nice=-20) as target:
        assert target.pid is not None
        with limited(target.pid, 0.1):
            seen = observed(target, kind, WINDOWS)
    assert share(seen, "heavy", "cpu-starved") >= 0.95
    told = [query for query in seen["heavy"] if query["verdict"] == "cpu-starved"]
    assert all("may use 0.1 CPUs" in query["advice"] for query in told)
    assert all(query["cpus"] == 0.1 for query in told)


def test_a_plan_says_who_needs_replicas() -> None:
    """The source of `heavy` is held, and more than one replica could take in what it would emit."""
    with causes(nice=0) as target:
        told = sched_ctl("plan", "--engine", target.engine, "--policy", "hr", "--json")
    [rule] = json.loads(told)
    rows = {(row["query"], row["operator"]): row for row in rule["replicas"]}
    row = rows["heavy", "crunch"]
    assert row["replicas"] == 1 < row["needed"] <= LEAP
    assert row["source_held"] and " at first, has 1; " in row["says"]
    assert not {query for query, _ in rows} & {"light", "quiet"}
