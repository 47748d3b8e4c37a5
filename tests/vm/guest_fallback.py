"""Kernels on which sched_ext cannot be used: that is said before anything is loaded."""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from contenders import SHARES, engine, used
from victims import plan
from vm.inside import look_until, only_on, text_of
from vm.machine import above_all, journal, progress, schedule, spinning

from sched_ctl.backends import Backend, ladder
from sched_ctl.backends.cgroups.v2 import Cgroup2Nice
from sched_ctl.backends.scx.probe import probe
from sched_ctl.backends.threads.neighbours import AUTOGROUP
from sched_ctl.backends.threads.nice import Nice
from sched_ctl.kernel import cgroup, schedext
from sched_ctl.model.topology import Thread

MOUNT = Path("/sys/fs/cgroup")

KERNELS = ("6.1", "6.12", "7.2")
CPUS = 1
ICOUNT = True
ICOUNT_SHIFT = 2
TIMEOUT_S = 90


def check_the_reason_is_given() -> None:
    found = probe()
    print(found)
    assert not found.can
    assert found.hint
    if schedext.state() is None:
        assert "no sched_ext" in found.because
    else:
        assert "defective" in found.because
        assert os.uname().release in found.because
        assert text_of("/sys/kernel/sched_ext/enable_seq") == "0", "something was loaded"


def check_the_next_backend_does_the_job() -> None:
    with spinning(4) as threads:
        backend, steps = ladder.choose("auto", {}, journal())
        print(backend.name, steps)
        assert backend.name == "cgroup2+nice"
        assert steps[0] == ("scx", probe())
        applied = backend.apply(schedule(threads, 0.0, shares=[4, 2, 1, 1]))
        assert not applied.problems, applied
        expected = (0.5, 0.25, 0.125, 0.125)
        look_until(
            lambda: progress(threads, 2.0),
            lambda got: all(
                abs(a / sum(got) - b) < 0.06 for a, b in zip(got, expected, strict=True)
            ),
        )
        assert backend.restore() == ()
        look_until(lambda: progress(threads, 2.0), lambda got: min(got) > 0.15)


@contextmanager
def placed(threads: list[Thread], where: str) -> Iterator[None]:
    """Their process in the root cgroup, or in a service's."""
    cgroup.write(MOUNT / "cgroup.subtree_control", "+cpu")
    service = MOUNT / "neighbour.service"
    if where == "service":
        service.mkdir()
        cgroup.write(service / "cgroup.procs", str(threads[0].pid))
    try:
        yield
    finally:
        if where == "service":
            cgroup.write(MOUNT / "cgroup.procs", str(threads[0].pid))
            service.rmdir()


@only_on("7.2")
def check_neighbours_lose_nothing() -> None:
    """Whoever else wants the CPU has what he had, and so has a collector beside operators."""
    cases: list[tuple[str, type[Cgroup2Nice] | type[Nice]]] = [
        ("root", Cgroup2Nice),
        ("root", Nice),
        ("no autogroup", Cgroup2Nice),  # nice alone counts against the whole machine there
        ("service", Cgroup2Nice),
        ("service", Nice),
    ]
    for where, kind in cases:
        AUTOGROUP.write_text("0" if where == "no autogroup" else "1")  # counts for who begins now
        with (
            engine(4, "with a collector") as threads,
            engine(1) as others,
            placed(threads, where),
        ):
            above_all()  # what is read of one after the other is of one moment then
            for groups in (None, SHARES):
                print(where, kind.__name__, "order" if groups is None else "shares")
                look_until(
                    lambda: before_and_during(kind(journal()), threads, others, groups),  # noqa: B023
                    lambda got: abs(got[1] - got[0]) < 0.03 and got[2] < 1.15,
                )


def before_and_during(
    backend: Backend,
    threads: list[Thread],
    others: list[Thread],
    groups: Mapping[str, tuple[float, tuple[int, ...]]] | None,
) -> tuple[float, float, float]:
    """The neighbour's share of the CPU before and during, and the collector's wait in ratio."""
    *operators, collector = threads
    everybody = [*threads, *others]
    before = used(everybody, collector, 0.8e9)
    done = backend.apply(plan(operators, [1, 2, 3, 4] if groups is None else [1] * 4, groups))
    assert not done.problems, done
    during = used(everybody, collector, 0.8e9)
    assert backend.restore() == ()
    parts = [use.of(others) / use.of(everybody) for use in (before, during)]
    # Without a turn in the whole phase nothing is known of its wait: a bad look.
    longer = during.wait_ns / before.wait_ns if before.wait_ns else math.inf
    return parts[0], parts[1], longer
