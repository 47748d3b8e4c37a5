"""What a schedule may not cost: the share of a neighbour, and the turn of an engine's own threads.

A process with four busy threads, as operators are, and one that is woken every 20 ms for 2 ms, as
a collector is, competes for one CPU with another process, each in a session of its own. Only
their proportions count, so whoever else uses that CPU takes from both.
"""

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from subprocess import PIPE, Popen

import numpy as np
import pytest
from contenders import SHARES, engine, folder, used
from victims import plan

from sched_ctl.backends import Backend
from sched_ctl.backends.cgroups.v1 import Cgroup1Nice
from sched_ctl.backends.threads.neighbours import autogroup_is_on
from sched_ctl.backends.threads.nice import Nice
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.drivers.threads import thread_of, threads_of
from sched_ctl.kernel import cgroup
from sched_ctl.model.options import NiceOptions
from sched_ctl.model.topology import Thread
from support import wait_until

pytestmark = [pytest.mark.host, pytest.mark.needs("root", "cgroup1_cpu")]


@contextmanager
def sliced(threads: Sequence[Thread]) -> Iterator[None]:
    """Their process is in a cgroup of its own inside, as a service or a container is."""
    home = folder(threads[0])
    own = home / f"slice-{os.getpid()}"
    own.mkdir()
    cgroup.write(own / "cgroup.procs", str(threads[0].pid))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            cgroup.write(home / "cgroup.procs", str(threads[0].pid))
        own.rmdir()


@pytest.mark.parametrize("kind", [Cgroup1Nice, Nice])
@pytest.mark.parametrize("groups", [None, SHARES], ids=["order", "shares"])
@pytest.mark.parametrize("place", ["root", "slice"])
def test_neighbours_and_collectors_lose_nothing(
    journal: Journal,
    kind: type[Cgroup1Nice] | type[Nice],
    groups: Mapping[str, tuple[float, tuple[int, ...]]] | None,
    place: str,
) -> None:
    """In the root cgroup, and in one of the engine's own; by version 2: vm/guest_fallback.py."""
    if not autogroup_is_on() and kind is Nice and place == "root":
        pytest.skip("nice alone counts against the whole machine without autogroup")
    with (
        engine(4, "with a collector") as threads,
        engine(1) as others,
        sliced(threads) if place == "slice" else nullcontext(),
    ):
        *operators, collector = threads
        everybody = [*threads, *others]
        backend: Backend = kind(journal)
        schedule = plan(operators, [1, 2, 3, 4] if groups is None else [1, 1, 1, 1], groups)
        try:
            for _ in range(3):  # what is measured is noisy, what is promised is not
                before = used(everybody, collector, 1e9)
                backend.apply(schedule)
                during = used(everybody, collector, 1e9)
                backend.restore()
                shares = [use.of(others) / use.of(everybody) for use in (before, during)]
                waits = before.wait_ns, during.wait_ns
                print(f"{kind.name}, {place}: neighbour {shares}, collector {waits}")
                if abs(shares[1] - shares[0]) < 0.03 and during.wait_ns < 1.1 * before.wait_ns:
                    break
            else:
                pytest.fail("a neighbour or the collector lost")
        finally:
            backend.restore()


def test_order_in_one_session_takes_no_cgroup(journal: Journal) -> None:
    if not autogroup_is_on():
        pytest.skip("needs autogroup")
    with engine(2) as threads:
        base = folder(threads[0])
        backend = Cgroup1Nice(journal)
        backend.apply(plan(threads, [1, 2]))
        assert {folder(thread) for thread in threads_of(threads[0].pid)} == {base}
        nices = [os.getpriority(os.PRIO_PROCESS, thread.tid) for thread in threads]
        assert nices[0] > 0 > nices[1]
        # Each level is a factor of 1.25: both want a CPU, and weigh together what they did.
        assert sum(1.25**-nice for nice in nices) == pytest.approx(2, rel=0.12)
        assert backend.restore() == ()


def test_order_between_sessions_takes_whole_processes(journal: Journal) -> None:
    """They weigh together what their sessions did, and each is put back with all its threads."""
    with ExitStack() as running:
        one, two = (running.enter_context(engine(2)) for _ in range(2))
        [other] = running.enter_context(engine(1))
        base = folder(one[0])
        backend = Cgroup1Nice(journal)
        backend.apply(plan((*one, *two), [1, 2, 3, 4]))
        [inside] = {folder(t) for pid in (one[0].pid, two[0].pid) for t in threads_of(pid)}
        assert inside.parent == base / cgroup.ROOT_NAME
        assert int((inside.parent / "cpu.shares").read_text()) in (2048, 4096)
        assert folder(other) == base
        # The process that has no thread in the schedule any more is let go
        backend.apply(plan(one, [1, 2]))
        assert {folder(t) for t in threads_of(two[0].pid)} == {base}
        backend.restore()
        assert {folder(t) for t in threads_of(one[0].pid)} == {base}


def test_shares_of_four_to_one_are_exact(journal: Journal) -> None:
    """Within 3%, whatever the helpers beside them do."""
    with engine(4, "with a collector") as threads:
        *operators, collector = threads
        backend = Cgroup1Nice(journal)
        try:
            backend.apply(plan(operators, [1, 1, 1, 1], SHARES))
            used(threads, collector, 0.2e9)  # as it was before
            use = used(threads, collector, 4e9)
            ratio = use.of(operators[2:]) / use.of(operators[:2])
            print(ratio)
            assert ratio == pytest.approx(4, rel=0.03)
        finally:
            backend.restore()


def test_who_gains_by_sharing_a_session_is_named(journal: Journal) -> None:
    """What lowered threads yield goes to others of their session; those of another gain nothing."""
    if not autogroup_is_on():
        pytest.skip("needs autogroup")
    spin = "while :; do :; done"
    command = ["sh", "-c", f"({spin}) & echo $!; ({spin}) & echo $!; wait"]
    with (
        engine(1) as others,
        Popen(command, stdout=PIPE, text=True, start_new_session=True) as session,
    ):
        backend = Nice(journal, NiceOptions(best=0))  # threads are only lowered
        try:
            assert session.stdout
            ours, rival = (int(session.stdout.readline()) for _ in range(2))
            thread = thread_of(ours, ours)
            assert thread
            schedule = plan([thread], [1])
            told = backend.write(schedule, np.array([5.0])).problems
            assert told == ()  # it takes two looks to see who is busy
            told = wait_until(
                lambda: backend.write(schedule, np.array([5.0])).problems, 30, "a remark"
            )
            assert f"(pid {rival})" in told[0]
            assert f"(pid {others[0].pid})" not in told[0]
            assert backend.write(schedule, np.array([0.0])).problems == ()  # nobody yields
        finally:
            backend.restore()
            os.killpg(session.pid, signal.SIGKILL)
