"""Operators beside others on one CPU, with exact time: nobody is worse off than under the OS.

And inside the engine: who interrupts whom, and what a thread's age is.
"""

import contextlib
import dataclasses
import fcntl
import mmap
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from burning import burn, nothing
from operators import adopt, busy, cpu_s, guaranteed, shares, start
from vm.inside import enough_on, look_until, only_on
from vm.machine import above_all, journal, schedule, thread_of

from sched_ctl.backends.scx.backend import Scx
from sched_ctl.kernel import schedext
from sched_ctl.kernel.scheduler import Scheduler, thread_pidfd
from sched_ctl.model.options import ScxOptions
from sched_ctl.model.topology import Thread
from support import wait_until

KERNELS = ("6.18", "7.3")
CPUS = 1
ICOUNT = True
ICOUNT_SHIFT = 2
TIMEOUT_S = 120

LEAD_US = 300_000_000  # more than any age here
WAKES = 1 << 12
F_SETPIPE_SZ = 1031  # fcntl.h
TABLE = 4096  # cgroups of which the scheduler keeps accounts
TUPLE = 128  # bytes, so that 32 of them fill a queue

schedext.kernel_types()  # read once, before the checks are forked


@contextlib.contextmanager
def napping(
    work_s: float = 0.0003, nap_s: float = 0.01
) -> Iterator[tuple[int, Callable[[], float]]]:
    """A process that sleeps and works by turns, and how late it wakes up, mean, s.

    nap_s: on average. Naps of one length fall into step with what else wakes up at fixed times: by
    how long a piece of work took, such a mean was .99 or 1.6 ms under one scheduler.
    """
    draw = random.Random(1)
    memory = mmap.mmap(-1, 8 * WAKES)
    seen = np.frombuffer(memory, dtype=np.float64)
    pid = os.fork()
    while pid == 0:
        asleep_s = nap_s * draw.uniform(0.7, 1.3)
        due = time.monotonic() + asleep_s
        time.sleep(asleep_s)
        at = int(seen[0])
        seen[1 + at % (WAKES - 1)] = time.monotonic() - due
        seen[0] = at + 1
        burn(work_s)

    def late_s() -> float:
        time.sleep(0.3)
        first = int(seen[0])
        time.sleep(2)
        numbers = np.arange(first, int(seen[0])) % (WAKES - 1) + 1
        assert len(numbers) > 1  # or it is not run at all
        return float(seen[numbers].mean())

    try:
        yield pid, late_s
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def as_queries(scheduler: Scheduler, leads: Sequence[int], queries: Sequence[int]) -> None:
    """Slots from 1 on: a place in the order, and whose work it is."""
    slots = scheduler.slots[1 : len(leads) + 1]
    slots["lead_us"], slots["query"], slots["depth"] = np.array(leads) * LEAD_US, queries, 1


def about(wanted: float) -> Callable[[list[float]], bool]:
    """Whether the last of the shares is that, within 5%."""
    return lambda found: abs(found[3] / wanted - 1) < 0.05


@enough_on("6.18")  # our shares, of weights that every kernel gives
def check_a_neighbour_keeps_its_share() -> None:
    """Beside three operators, one of them above all, a process has a fourth; less if it is nice."""
    with Scheduler(full=True) as scheduler, busy(4) as pids:
        as_queries(scheduler, [3, 0, 0], [1, 2, 3])
        adopt(scheduler, pids[:3])
        scheduler.attach()
        above_all()
        look_until(lambda: shares(pids, 3), lambda found: abs(found[3] / 0.25 - 1) < 0.05)
        for nice, weight in ((5, 335), (-5, 3121)):
            os.setpriority(os.PRIO_PROCESS, pids[3], nice)
            wanted = weight / (3 * 1024 + weight)
            look_until(lambda: shares(pids, 3), about(wanted))
        assert scheduler.exit() is None


def changes_itself() -> None:
    for policy in (os.SCHED_BATCH, os.SCHED_OTHER):
        burn(0.001)
        os.sched_setscheduler(0, policy, os.sched_param(0))


@enough_on("6.18")  # our accounts
def check_who_is_changed_while_it_runs_keeps_its_share() -> None:
    """The kernel takes it off and puts it back, as if it had slept in between."""
    with Scheduler(full=True) as scheduler, start(1, changes_itself) as pids, busy(1) as hogs:
        adopt(scheduler, pids)
        scheduler.attach()
        above_all()
        look_until(lambda: shares([*pids, *hogs], 3), lambda found: abs(found[1] - 0.5) < 0.05)
        assert scheduler.exit() is None


@enough_on("6.18")  # our bookkeeping
def check_who_had_the_slot_before_takes_nothing_from_who_has_it() -> None:
    """An operator that is let go of while it sleeps, and then wakes up."""
    with Scheduler(full=True) as scheduler, busy(3) as (former, owner, _):
        above_all()
        row = scheduler.threads[1:2]

        def waits() -> bool:
            return int(row["tid"][0]) > 0 and int(row["queued_ns"][0]) > 0

        adopt(scheduler, [former])
        scheduler.attach()
        wait_until(waits)
        os.kill(former, signal.SIGSTOP)
        wait_until(lambda: not row["weight"][0])
        scheduler.slots[1]["flags"] = 0
        with open(thread_pidfd(former), "rb", buffering=0) as pidfd:
            scheduler.disown(pidfd.fileno())
        row[:] = 0
        adopt(scheduler, [owner])
        wait_until(waits)
        os.kill(former, signal.SIGCONT)
        assert row["weight"][0] > 0
        assert scheduler.exit() is None


@contextlib.contextmanager
def pipeline(costs_s: Sequence[float]) -> Iterator[list[Thread]]:
    """A saturated query: a process an operator, with queues of bounded length between them."""
    queues = [os.pipe() for _ in costs_s[1:]]
    for _, end in queues:
        fcntl.fcntl(end, F_SETPIPE_SZ, 4096)
    pids = []
    for i, cost_s in enumerate(costs_s):
        pid = os.fork()
        while pid == 0:
            if i > 0:
                os.read(queues[i - 1][0], TUPLE)
            burn(cost_s)
            if i < len(queues):
                os.write(queues[i][1], bytes(TUPLE))
        pids.append(pid)
    try:
        yield [thread_of(pid) for pid in pids]
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@contextlib.contextmanager
def in_cgroups(*members: Sequence[int]) -> Iterator[None]:
    """Each list of processes in a cgroup of weight 100."""
    root = Path("/sys/fs/cgroup")
    (root / "cgroup.subtree_control").write_text("+cpu")
    folders = [root / f"of-{pids[0]}" for pids in members]
    for folder, pids in zip(folders, members, strict=True):
        folder.mkdir()
        for pid in pids:
            (folder / "cgroup.procs").write_text(str(pid))
    try:
        yield
    finally:
        for folder, pids in zip(folders, members, strict=True):
            for pid in pids:
                (root / "cgroup.procs").write_text(str(pid))
            folder.rmdir()
        (root / "cgroup.subtree_control").write_text("-cpu")


def beside_a_pipeline(place: str) -> None:
    """A hog keeps its share beside a saturated query whose last operators go first."""
    with contextlib.ExitStack() as running:
        threads = running.enter_context(pipeline([0.00003, 0.0001, 0.001, 0.00005]))
        hogs = running.enter_context(busy(1))
        pids = [thread.pid for thread in threads]
        if place == "one cgroup":
            running.enter_context(in_cgroups([*pids, *hogs]))
        elif place == "a cgroup each":
            running.enter_context(in_cgroups(pids, hogs))
        above_all()
        before = shares(hogs, 4)
        backend = Scx(journal(), ScxOptions(mode="full", ttl=60))
        found = schedule(threads, [1.0, 2.0, 3.0, 4.0])
        wanted = dataclasses.replace(found, queries=(("engine", "q"),) * 4, depth=np.arange(1, 5))

        def during() -> float:
            backend.apply(wanted)
            [share] = shares(hogs, 1.5)
            return share / before[0]

        for _ in range(4):  # until what the threads did is known
            during()
        look_until(during, lambda ratio: abs(ratio - 1) < 0.2)  # 1.10 to 1.16 in one cgroup
        assert backend.scheduler is not None
        assert backend.scheduler.cgroups == (place != "the root")
        assert 0 < float(backend.scheduler.control["weight_part"]) < 1000
        backend.restore()


@only_on("6.18")
def check_an_order_does_not_make_an_engine_heavier() -> None:
    """Who is last in it waits all the time, which would weigh as much as a thread that runs."""
    beside_a_pipeline("the root")


@only_on("6.18")
def check_an_order_does_not_make_an_engine_heavier_in_its_cgroup() -> None:
    """Nor lighter, where its cgroup says what it weighs."""
    for place in ("one cgroup", "a cgroup each"):
        beside_a_pipeline(place)


def check_an_engine_in_a_cgroup_has_its_weight() -> None:
    """Three operators in a cgroup of weight 100 and a process in one of 200 have 1:2."""
    root = Path("/sys/fs/cgroup")
    (root / "cgroup.subtree_control").write_text("+cpu")
    folders = {root / "engine": "100", root / "neighbour": "200"}
    with Scheduler(full=True, cgroups=True) as scheduler, busy(4) as pids:
        above_all()
        for (folder, weight), members in zip(folders.items(), (pids[:3], pids[3:]), strict=True):
            folder.mkdir()
            (folder / "cpu.weight").write_text(weight)
            for pid in members:
                (folder / "cgroup.procs").write_text(str(pid))
        as_queries(scheduler, [3, 0, 0], [1, 2, 3])
        adopt(scheduler, pids[:3])
        scheduler.attach()
        look_until(lambda: shares(pids, 3), lambda found: abs(found[3] / (2 / 3) - 1) < 0.05)
        assert scheduler.exit() is None
        for pid in pids:
            (root / "cgroup.procs").write_text(str(pid))
        for folder in folders:
            folder.rmdir()
        (root / "cgroup.subtree_control").write_text("-cpu")


@enough_on("6.18")  # our accounts
def check_who_comes_later_has_its_share_once_hints_are_lost() -> None:
    """Beside an operator that had the CPU alone when its controller fell silent."""
    with Scheduler(full=True) as scheduler, busy(3) as pids:
        for pid in pids[1:]:
            os.kill(pid, signal.SIGSTOP)
        scheduler.control["ttl_ms"] = 300
        as_queries(scheduler, [0], [1])
        adopt(scheduler, pids[:1])
        scheduler.attach()
        above_all()
        scheduler.beat()
        wait_until(lambda: scheduler.stats()["expired"] > 0)
        for pid in pids[1:]:
            os.kill(pid, signal.SIGCONT)
            found = shares(pids, 3)
        print([f"{share:.3f}" for share in found])
        assert max(found) - min(found) < 0.1, found
        assert scheduler.exit() is None


@enough_on("6.18")  # our timers
def check_a_limited_cgroup_has_its_quota_on_an_idle_cpu() -> None:
    """Nothing else wakes up, so that only its own timer brings it back."""
    root = Path("/sys/fs/cgroup")
    folder = root / "limited"
    (root / "cgroup.subtree_control").write_text("+cpu")
    folder.mkdir()
    (folder / "cpu.max").write_text("20000 100000")
    try:
        with Scheduler(full=True, cgroups=True) as scheduler, busy(1) as pids:
            (folder / "cgroup.procs").write_text(str(pids[0]))
            scheduler.attach()
            (share,) = shares(pids, 10)
            print(f"{share:.3f}", scheduler.stats()["parked"])
            assert 0.17 < share < 0.22, share
            assert scheduler.exit() is None
    finally:
        folder.rmdir()
        (root / "cgroup.subtree_control").write_text("-cpu")


@enough_on("6.18")  # our bound
def check_who_is_parked_on_an_idle_cpu_has_a_turn() -> None:
    """A quota that is overdrawn for long holds nobody back until the kernel ends the scheduler."""
    root = Path("/sys/fs/cgroup")
    folder = root / "limited"
    (root / "cgroup.subtree_control").write_text("+cpu")
    folder.mkdir()
    (folder / "cpu.max").write_text("1000 1000000")
    tunables = {"other_starvation_ms": 500}
    try:
        with (
            Scheduler(full=True, cgroups=True, tunables=tunables, timeout_ms=2000) as scheduler,
            busy(4) as pids,
        ):
            above_all()
            for pid in pids:
                (folder / "cgroup.procs").write_text(str(pid))
            scheduler.attach()
            time.sleep(1)
            bound = scheduler.program.array(".bss", "starvation_jiffies")
            used = [cpu_s(pid) for pid in pids]
            for _ in range(20):
                bound[...] = 0  # as if nobody had waited for a CPU so far
                time.sleep(0.2)
                assert bound > 0  # it is known all the same
            print(used, scheduler.stats())
            assert scheduler.exit() is None, scheduler.exit()
            assert all(cpu_s(pid) > before for pid, before in zip(pids, used, strict=True))
    finally:
        folder.rmdir()
        (root / "cgroup.subtree_control").write_text("-cpu")


def half_is_the_first(found: list[float]) -> bool:
    """Of what they have together, within 6%."""
    return abs(found[0] / sum(found) - 0.5) < 0.03


@enough_on("6.18")  # our accounts
def check_cgroups_beyond_the_table_count_as_those_above() -> None:
    """Thousands of empty cgroups take nobody out of his own, nor have limits one account."""
    root = Path("/sys/fs/cgroup")
    mine, other = root / "mine", root / "other"
    empty = [mine / str(i) for i in range(TABLE)]
    late = [mine / name for name in ("one", "two")]
    folders = [mine, other, *empty, *late]
    (root / "cgroup.subtree_control").write_text("+cpu")
    with busy(3) as pids, contextlib.ExitStack() as made:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        made.callback((root / "cgroup.subtree_control").write_text, "-cpu")
        for folder in folders:
            folder.mkdir()
            made.callback(folder.rmdir)
            if folder == mine:
                (mine / "cgroup.subtree_control").write_text("+cpu")
        with Scheduler(full=True, cgroups=True) as scheduler:
            above_all()
            for pid, folder in zip(pids, [other, *late], strict=True):
                (folder / "cgroup.procs").write_text(str(pid))
                made.callback((root / "cgroup.procs").write_text, str(pid))
                os.kill(pid, signal.SIGCONT)
            scheduler.attach()
            for limit in ("max", "1000"):
                (late[0] / "cpu.max").write_text(f"{limit} 100000")
                (late[1] / "cpu.max").write_text("90000 100000")
                look_until(lambda: shares(pids, 2), half_is_the_first)
            assert scheduler.exit() is None


@only_on("6.18")
def check_operators_first_by_request() -> None:
    """With precedence for operators others have the guarantee, and no more."""
    with Scheduler(full=True, tunables={"operators_first": True}) as scheduler, busy(3) as pids:
        adopt(scheduler, pids[:2])
        scheduler.attach()
        above_all()
        look_until(lambda: shares(pids, 3), guaranteed)


def check_a_neighbour_wakes_up_in_time() -> None:
    """As soon as under the OS, however many operators want the CPU."""
    with Scheduler(full=True) as scheduler, busy(3) as pids, napping() as (_, late_s):
        above_all()
        usual_s = late_s()
        as_queries(scheduler, [2, 1, 0], [1, 2, 3])
        adopt(scheduler, pids)
        scheduler.attach()
        mine_s = late_s()
        print(
            f"late by {usual_s * 1e3:.3f} ms under the OS, {mine_s * 1e3:.3f} ms", scheduler.stats()
        )
        assert mine_s <= 1.05 * usual_s + 0.0001


@enough_on("6.18")  # our bound
def check_who_waits_longest_runs_next() -> None:
    """Light hogs beside heavy ones, more of them than one turn each 50 ms is enough for.

    By weight alone each of them would have a turn in 4 s.
    """
    bound_s, heavy, light = 0.2, 10, 20
    memory = mmap.mmap(-1, 8 * (heavy + light))
    longest_s = np.frombuffer(memory, dtype=np.float64)

    def hog(index: int) -> Callable[[], None]:
        seen = [time.monotonic()]

        def work() -> None:
            nothing()
            now = time.monotonic()
            longest_s[index] = max(longest_s[index], now - seen[0])
            seen[0] = now

        return work

    tunables = {"other_starvation_ms": round(bound_s * 1e3)}
    with Scheduler(full=True, tunables=tunables) as scheduler, contextlib.ExitStack() as running:
        pids = [running.enter_context(start(1, hog(i)))[0] for i in range(heavy + light)]
        above_all()
        for pid in pids[heavy:]:
            os.setpriority(os.PRIO_PROCESS, pid, 19)
        scheduler.attach()
        time.sleep(4)  # jiffies are known after one, and those who waited then are through

        def look() -> list[float]:
            longest_s[:] = 0
            time.sleep(5)
            return [round(float(s), 2) for s in longest_s]

        # The 20 light ones, at one each 50 ms, would wait for a second.
        look_until(look, lambda found: min(found) > 0 and max(found) < 3.5 * bound_s)
        print(scheduler.stats())
        assert scheduler.exit() is None


@enough_on("6.18")  # our bounds
def check_who_waited_too_long_has_every_second_turn_beside_operators() -> None:
    """Others who have waited for twice the bound, where operators wait and have precedence."""
    tunables = {"operators_first": True, "other_starvation_ms": 100}
    with Scheduler(full=True, tunables=tunables) as scheduler, busy(2) as pids, busy(30) as others:
        above_all()
        adopt(scheduler, pids)
        scheduler.attach()
        time.sleep(2)  # jiffies are known after one
        look_until(lambda: sum(shares(others, 2)), lambda found: found > 0.34)
        assert scheduler.exit() is None


@only_on("6.18")
def check_an_operator_wakes_up_in_time_beside_a_hog() -> None:
    """One that sleeps most of the time interrupts others as the OS would let it."""
    with Scheduler(full=True) as scheduler, busy(1), napping() as (pid, late_s):
        above_all()
        usual_s = late_s()
        as_queries(scheduler, [1], [1])
        adopt(scheduler, [pid])
        scheduler.attach()
        mine_s = late_s()
        print(
            f"late by {usual_s * 1e3:.3f} ms under the OS, {mine_s * 1e3:.3f} ms", scheduler.stats()
        )
        assert mine_s <= 1.05 * usual_s + 0.0001


@only_on("7.3")
def check_an_operator_wakes_up_in_time_beside_a_heavy_one_and_many_helpers() -> None:
    """What the heavy one has used does not make the light one wait behind a dozen who woke up.

    It waits 1.17 times as long as under the OS, without a right of its own 1.37 times; on 6.18,
    where the OS has it run sooner, 1.57 and 1.88 times.
    """

    def help_out() -> None:
        time.sleep(0.05 - time.monotonic() % 0.05)
        burn(0.001)

    with (
        Scheduler(full=True) as scheduler,
        busy(1) as heavy,
        start(12, help_out),
        napping(nap_s=0.007) as (light, late_s),
    ):
        above_all()
        usual_s = np.mean([late_s() for _ in range(5)])
        as_queries(scheduler, [0, 1], [1, 2])
        adopt(scheduler, [*heavy, light])
        scheduler.attach()
        mine_s = np.mean([late_s() for _ in range(5)])
        print(
            f"late by {usual_s * 1e3:.3f} ms under the OS, {mine_s * 1e3:.3f} ms", scheduler.stats()
        )
        assert mine_s <= 1.28 * usual_s  # who woke up before it goes first under either


@only_on("6.18")
def check_who_interrupts_whom() -> None:
    """The more urgent of another query does, soon; the less urgent, or of the same, does not."""
    cases = {
        "more urgent": (1, 2, True),
        "less urgent": (-1, 2, False),
        "the same query": (1, 1, False),
    }
    with Scheduler(full=True) as scheduler, busy(2) as pids, napping() as (pid, late_s):
        above_all()
        adopt(scheduler, [*pids, pid])
        scheduler.attach()
        for name, (lead, query, soon) in cases.items():
            as_queries(scheduler, [1, 1, 1 + lead], [1, 1, query])
            late = late_s()
            print(f"{name}: {late * 1e3:.2f} ms,", scheduler.stats())
            assert (late < 0.001) is soon, (name, late)
        assert scheduler.exit() is None


@only_on("6.18")
def check_who_asks_for_a_later_end_of_a_turn_does_not_put_off_an_earlier_one() -> None:
    """One of the others wakes up and lets the turn last for 40 ms, then an operator for 10."""
    tunables = {"base_slice_us": 40_000}
    with (
        Scheduler(full=True, tunables=tunables) as scheduler,
        napping(work_s=0.05, nap_s=0.001) as (heavy, _),
        napping(nap_s=0.003),
        napping(nap_s=0.01) as (light, late_s),
    ):
        above_all()
        as_queries(scheduler, [1, 2], [1, 2])
        scheduler.control["slice_us"], scheduler.control["least_us"] = 100_000, 10_000
        adopt(scheduler, [heavy, light])
        scheduler.attach()
        late = late_s()
        print(f"late by {late * 1e3:.2f} ms", scheduler.stats())
        assert late < 0.003
        assert scheduler.exit() is None


@enough_on("6.18")  # our arithmetic
def check_few_turns_are_lent_however_long_the_table_is() -> None:
    """One each 10 ms, where looks at the table come more often than that."""
    with Scheduler(full=True) as scheduler, busy(12) as pids:
        above_all()
        scheduler.control["starvation_ms"] = 10_000
        for slot, pid in enumerate(pids):
            adopt(scheduler, [pid], 1 + slot * 512)
        scheduler.slots["lead_us"][1] = LEAD_US
        scheduler.attach()
        time.sleep(1)
        before, began = scheduler.stats()["lent"], time.monotonic()
        time.sleep(2)
        rate = (scheduler.stats()["lent"] - before) / (time.monotonic() - began)
        print(f"{rate:.0f} lent turns a second", scheduler.stats())
        assert 50 < rate < 105
        assert scheduler.exit() is None


@enough_on("6.18")  # our arithmetic
def check_a_wake_up_preempts_by_rank_too() -> None:
    """Nobody of a higher rank, however many times; by the threads' own forms where they count."""
    rank = 1 << 56  # sched_ctl.h: RANK_SHIFT
    for exact in (False, True):
        with Scheduler(full=False) as scheduler, busy(1) as pids, napping() as (pid, late_s):
            above_all()
            control, slots = scheduler.control, scheduler.slots
            control["queues"]["slope"][:2], control["nr_queues"] = (1, 1024), 2
            if exact:
                control["queues"]["flags"][0] = 1  # QUEUE_EXACT
                slots["base"][2], control["preempt_times"] = rank, 2
            else:
                control["queues"]["base"][0], control["preempt_times"] = rank, 256
                slots["queue"][2], slots["lead_us"][2] = 1, 1_000_000
            adopt(scheduler, [*pids, pid])
            scheduler.attach()
            late = late_s()
            print(f"{exact}: late by {late * 1e3:.2f} ms", scheduler.stats())
            assert late < 0.001 if exact else late > 0.01
            assert scheduler.exit() is None


@contextlib.contextmanager
def saturated() -> Iterator[tuple[list[int], Callable[[], object]]]:
    """A pipe that is always full: who fills it, and who empties it, which takes much longer.

    Also what begins it: the first wake-up is the last, and ages are handed on by wake-ups.
    """
    reader, writer = os.pipe()
    gate, opener = os.pipe()
    opened: list[bytes] = []

    def fill() -> None:
        if not opened:
            opened.append(os.read(gate, 1))
        os.write(writer, bytes(4096))

    def empty() -> None:
        os.read(reader, 4096)
        burn(0.005)

    with start(1, fill) as up, start(1, empty) as down:
        yield [*up, *down], lambda: os.write(opener, b"!")


@only_on("6.18")
def check_ages_do_not_grow_under_back_pressure() -> None:
    """Neither who fills a queue that is always full nor who empties it looks ever older."""
    with Scheduler(full=True) as scheduler, saturated() as (pids, begin):
        above_all()
        slots = scheduler.slots[1:3]
        slots["query"], slots["depth"] = 1, (1, 2)
        scheduler.attach()
        adopt(scheduler, pids)
        begin()
        time.sleep(5)
        now_ns = scheduler.now_ns()
        ages_ms = (now_ns - scheduler.threads["origin_ns"][1:3].astype(np.int64)) * 1e-6
        print("ages", ages_ms, scheduler.stats())
        assert ages_ms.max() < 100


@only_on("6.18")
def check_a_queue_that_stands_does_not_hold_up_another_query() -> None:
    """First come, first served: the saturated query's tuples came first, long ago."""
    with (
        Scheduler(full=True) as scheduler,
        saturated() as (pids, begin),
        napping() as (pid, late_s),
    ):
        above_all()
        slots = scheduler.slots[1:4]
        slots["query"], slots["depth"] = (1, 1, 2), (1, 2, 1)
        scheduler.attach()
        adopt(scheduler, [*pids, pid])
        slots["flags"] |= scheduler.slot_flags["SLOT_RIVALS"]
        begin()
        time.sleep(1)
        # What a driver said once: with each second tuples from then on would look older.
        scheduler.heads[1:3] = time.monotonic_ns()
        late = late_s()
        print(f"late by {late * 1e3:.2f} ms", scheduler.stats())
        assert late < 0.01


@only_on("6.18")
def check_work_from_another_node_is_as_old_as_it_says() -> None:
    """The age on arrival goes down the pipeline, and first come, first served goes by it."""
    came_us = 700_000
    costs_s = (0.002, 0.002)
    with (
        Scheduler(full=True) as scheduler,
        pipeline(costs_s) as far,
        pipeline(costs_s) as near,
    ):
        above_all()
        slots = scheduler.slots[1:5]
        slots["query"], slots["depth"] = (1, 1, 2, 2), (1, 2, 1, 2)
        scheduler.attach()
        adopt(scheduler, [thread.tid for thread in (*far, *near)])

        def ages_ms() -> list[float]:
            time.sleep(1)
            found = []
            for _ in range(50):
                time.sleep(0.013)
                origins = scheduler.threads["origin_ns"][1:5].astype(np.int64)
                found.append((scheduler.now_ns() - origins) * 1e-6)
            return [float(age) for age in np.median(found, axis=0)]

        before = ages_ms()
        scheduler.arrivals[1:3] = came_us
        after = ages_ms()
        print("ages, ms", before, after, scheduler.stats())
        assert max(before) < 300
        assert all(700 <= age < 1000 for age in after[:2])
        assert max(after[2:]) < min(after[:2]), "the others wait until theirs is as old"
        # what is not believable is bounded, and nobody is ejected for it
        scheduler.arrivals[1] = 0xFFFFFFFF
        ages = ages_ms()
        assert 1_000_000 < ages[0] < 1_080_000, ages
        assert scheduler.exit() is None


@enough_on("6.18")  # our arithmetic of the floor
def check_who_lags_behind_its_fair_share_goes_first() -> None:
    """The last in the order keeps the share it would have without one, and the first its place."""

    def with_naps() -> None:  # a backlog that is handed over in pieces: it sleeps between them
        time.sleep(0.0002)
        burn(0.007)

    with (
        Scheduler(full=True) as scheduler,
        busy(2) as (strict, bulk),
        start(1, with_naps) as (side,),
        napping() as (light, late_s),
    ):
        above_all()
        as_queries(scheduler, [2, 1, 0, 3], [1, 2, 3, 4])
        adopt(scheduler, [strict, bulk, side, light])
        os.kill(strict, signal.SIGSTOP)
        scheduler.attach()
        found = {}
        for floor_us, weights in (
            (0, (1024, 1024)),
            (50_000, (1024, 1024)),
            (50_000, (1024, 2048)),
        ):
            scheduler.weights[2:5] = (*weights, 1024)
            scheduler.control["floor_us"] = floor_us
            late = late_s()
            found[floor_us, weights] = (*shares([bulk, side], 2, settle_s=1), late)
        print({case: np.round(seen, 4).tolist() for case, seen in found.items()})
        print(scheduler.stats())
        without, with_it, double = found.values()
        assert without[1] < 0.1 < without[0]
        assert abs(with_it[1] / sum(with_it[:2]) - 1 / 2) < 0.03
        # Of a double share who sleeps between its pieces gets .55 to .65, as under the OS.
        assert 0.5 < double[1] / sum(double[:2]) < 0.7
        # The light one waits for the pieces of nobody. (Under the OS it is late by 1 ms.)
        assert max(with_it[2], double[2]) < without[2] + 0.0006
        # Without a weight it has its place in the order alone, and no other makes up for it.
        scheduler.weights[2] = 0
        os.kill(strict, signal.SIGCONT)
        first, *_ = shares([strict], 2, settle_s=1)
        assert first > 0.8
        # By the bound of waiting alone it has a turn now and then, and does not get younger in it.
        scheduler.control["floor_us"] = 0
        rescues = int(scheduler.threads["rescues"][2])
        time.sleep(3)
        age_s = (scheduler.now_ns() - int(scheduler.threads["origin_ns"][2])) * 1e-9
        assert int(scheduler.threads["rescues"][2]) > rescues and age_s > 1.5, age_s
        assert scheduler.exit() is None


# -- who waits without sleeping --------------------------------------------------------------------


@contextlib.contextmanager
def waiting_pair(wait: Callable[[], object]) -> Iterator[tuple[list[int], Callable[[], float]]]:
    """Two processes, and steps a second: the first waits by `wait` for each step of the second."""
    memory = mmap.mmap(-1, 8)
    done = np.frombuffer(memory, dtype=np.int64)

    def waits() -> None:
        before = int(done[0])
        while done[0] == before:
            wait()

    def steps() -> None:
        burn(0.0005)
        done[0] += 1

    def rate() -> float:
        time.sleep(0.3)
        before, began = int(done[0]), time.monotonic()
        time.sleep(2)
        return (int(done[0]) - before) / (time.monotonic() - began)

    with start(1, waits) as first, start(1, steps) as second:
        yield [*first, *second], rate


def steps_in_either_order(wait: Callable[[], object], least: float) -> None:
    """The most urgent one waits, then the other: so much of what they get from the fair class."""
    above_all()
    with waiting_pair(wait) as (pids, rate):
        usual = rate()
        for tunables in ({"operators_first": True}, {}):
            with Scheduler(full=True, tunables=tunables) as scheduler:
                as_queries(scheduler, [1, 0], [1, 1])
                adopt(scheduler, pids)
                scheduler.attach()
                for leads in ([1, 0], [0, 1]):
                    as_queries(scheduler, leads, [1, 1])
                    look_until(rate, lambda got: got > least * usual)
                assert scheduler.exit() is None


@enough_on("6.18")  # whom our order has next
def check_who_yields_lets_others_go_on() -> None:
    """sched_yield() for a less urgent one's work gives it the CPU, as without an order."""
    steps_in_either_order(os.sched_yield, 0.5)


@enough_on("7.3")  # our average
def check_the_governor_is_asked_for_what_is_used() -> None:
    """Of a CPU that idles, is used for a third of the time, or all the time: within 2%."""
    above_all()
    with Scheduler(full=True) as scheduler:
        usages = scheduler.program.array(".bss", "usages")
        scheduler.attach()

        def apart(pids: Sequence[int]) -> float:
            """Between what the kernel was asked for, on average, and what was used."""
            time.sleep(0.5)
            seen, used, began = [], [cpu_s(pid) for pid in pids], time.monotonic()
            while time.monotonic() < began + 1:
                time.sleep(0.023)
                seen.append(int(usages["seen"][0]) / 1024)
            took = time.monotonic() - began
            share = sum(cpu_s(pid) - u for pid, u in zip(pids, used, strict=True)) / took
            print(f"used {share:.3f}, asked for {np.mean(seen):.3f}")
            return abs(float(np.mean(seen)) - share)

        for work_s, nap_s in ((0.0001, 0.02), (0.003, 0.007), (0.01, 0.0)):
            with napping(work_s, nap_s) as (pid, _):
                look_until(lambda pid=pid: apart([pid]), lambda got: got < 0.02)  # type: ignore[misc]
        assert scheduler.exit() is None
