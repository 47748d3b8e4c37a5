"""Threads that never sleep under the BPF scheduler, in a guest with several last-level caches.

    ./dev run python -m bench.guest.caches [--kernel 6.18] [--cpus 4] [--caches 2] [--seconds 4]
                                     [--realtime] CASE ...

    fair:N       CPU time of N threads that are not adopted (full mode), and under EEVDF
    strict:N     of N operators in strict order, the first the most urgent; then in reverse
    naps:N:M     of N urgent operators that work and sleep 1.5 ms each, and M hogs below them
    starve:N:S   longest wait of N operators in strict order within S seconds

By default the guest's time is exact (QEMU's icount): its CPUs take turns and share the clock, so
shares are normalised to their sum and given in CPUs. Waits are in the guest's clock as it is.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from bench import results
from bench.results import Result, Row
from sched_ctl.kernel import schedext
from sched_ctl.kernel.scheduler import Scheduler, last_level_caches, thread_pidfd

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PLACE_US = 1_000_000  # between two places of the order
SETTLE_S = 4.0  # before shares are measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="+", metavar="CASE")
    parser.add_argument("--kernel", default="6.18")
    parser.add_argument("--cpus", type=int, default=4)
    parser.add_argument("--caches", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--shift", type=int, default=2, help="2**shift ns an instruction")
    parser.add_argument("--realtime", action="store_true", help="not exact")
    results.argument(parser)
    parser.add_argument("--inside", metavar="SPIN", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        inside(arguments)
    else:
        in_guest(arguments)


def in_guest(arguments: argparse.Namespace) -> None:
    import guest
    import kernels

    spin = ROOT / "build" / "spin"
    spin.parent.mkdir(exist_ok=True)
    source = HERE / "spin.c"
    subprocess.run(["cc", "-O2", "-pthread", "-o", str(spin), str(source)], check=True)
    subprocess.run(["make", "-s", "-C", str(ROOT / "bpf")], check=True)
    options = guest.Options(
        cpus=arguments.cpus,
        sockets=arguments.caches,
        memory="2G",
        timeout_s=3600,
        icount=not arguments.realtime,
        icount_shift=arguments.shift,
        append=kernels.append(arguments.kernel),
    )
    command = [sys.executable, "-m", "bench.guest.caches", *sys.argv[1:], "--inside", str(spin)]
    os.chdir(ROOT)
    environment = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    image, text = kernels.find(arguments.kernel), ""
    with guest.boot(image, command, options, environment) as machine:
        for piece in machine.output():
            text += piece.decode(errors="replace")
            sys.stdout.write(piece.decode(errors="replace"))
            sys.stdout.flush()
    if machine.returncode:
        sys.exit(f"the guest ended with {machine.returncode}\n{machine.log[-2000:]}")
    if arguments.keep:
        results.write(arguments.keep, told(text, arguments))


def told(text: str, arguments: argparse.Namespace) -> Result:
    """What the guest printed, a row for each line of a case."""
    rows, case = [], ""
    for line in text.splitlines():
        if line.strip() in arguments.cases:
            case = line.strip()
        elif case and line.strip():
            first, _, rest = line.strip().partition(" ")
            rows.append(Row(f"{case}: {first}", {"told": rest.strip()}))
    return Result(
        title="Threads that never sleep on several last-level caches: CPUs that each has",
        columns=["told"],
        n=1,
        spread=None,
        seeds=None,
        kernel=arguments.kernel,
        rows=rows,
        **results.here(),
    )


@contextlib.contextmanager
def spinning(program: str, *arguments: int) -> Iterator[tuple[list[int], Callable[[], None]]]:
    """Thread ids of the program's threads, and what lets them begin to work."""
    words = [program, *map(str, arguments)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        if process.stdout.read(1) != b"x":
            raise SystemExit("not so many threads can be made")
        tasks = Path(f"/proc/{process.pid}/task")
        try:
            names = [int(task.name) for task in tasks.iterdir()]
            tids = sorted(name for name in names if name != process.pid)
            yield tids, process.stdin.close
        finally:
            process.kill()


def used_s(tids: Sequence[int]) -> np.ndarray:
    files = [Path(f"/proc/{tid}/schedstat") for tid in tids]
    return np.array([int(file.read_text().split()[0]) * 1e-9 for file in files])


def shares(tids: Sequence[int], seconds: float, total: float) -> list[str]:
    """Of all CPU time that these threads got, in CPUs."""
    before = used_s(tids)
    time.sleep(seconds)
    got = used_s(tids) - before
    return [f"{share:.3f}".lstrip("0") for share in got / got.sum() * total]


def inside(arguments: argparse.Namespace) -> None:
    schedext.kernel_types()
    print(os.uname().release, "caches of CPUs", last_level_caches(), flush=True)
    # Goes before what is measured.
    policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
    os.sched_setscheduler(0, policy, os.sched_param(1))
    for case in arguments.cases:
        name, *numbers = case.split(":")
        print(case, flush=True)
        measure(arguments, name, [int(number) for number in numbers])
    complaints = subprocess.run(["dmesg"], capture_output=True, text=True, check=False).stdout
    print(*[line for line in complaints.splitlines() if "BUG" in line or "WARN" in line], sep="\n")


def measure(arguments: argparse.Namespace, name: str, numbers: list[int]) -> None:
    naps = (1500, 1500) if name == "naps" else ()
    with contextlib.ExitStack() as stack:
        # Beside what spins it would take many times as long.
        scheduler = stack.enter_context(Scheduler(full=True))
        tids, begin = stack.enter_context(spinning(arguments.inside, numbers[0], *naps))
        if name == "naps":
            hogs, begin_hogs = stack.enter_context(spinning(arguments.inside, numbers[1]))
            tids += hogs
            begin_hogs()
        total = float(min(len(tids), arguments.cpus))
        if name == "fair":
            begin()
            time.sleep(SETTLE_S)
            print("EEVDF    ", *shares(tids, arguments.seconds, total), flush=True)
        else:
            order(scheduler, np.arange(len(tids))[::-1])
            adopt(scheduler, tids)
        scheduler.attach()
        if name != "fair":
            begin()
        if name == "starve":
            starve(scheduler, len(tids), float(numbers[1]))
        else:
            looks(scheduler, tids, arguments, name, total)
        print(scheduler.exit() or "still attached", scheduler.stats(), flush=True)


def order(scheduler: Scheduler, places: np.ndarray) -> None:
    scheduler.slots[1 : len(places) + 1]["lead_us"] = np.minimum(places * PLACE_US, 1 << 30)


def adopt(scheduler: Scheduler, tids: Sequence[int]) -> None:
    scheduler.slots[1 : len(tids) + 1]["flags"] = scheduler.slot_flags["SLOT_ACTIVE"]
    for slot, tid in enumerate(tids, 1):
        fd = thread_pidfd(tid)
        scheduler.adopt(fd, slot)
        os.close(fd)


def looks(
    scheduler: Scheduler,
    tids: Sequence[int],
    arguments: argparse.Namespace,
    case: str,
    total: float,
) -> None:
    n = len(tids)
    for look in range(2):
        time.sleep(SETTLE_S)
        name = "again" if look else "scx"
        if case == "strict" and look:
            name = "reversed"
            order(scheduler, np.arange(n))
            time.sleep(SETTLE_S)
        before = scheduler.threads[1 : n + 1].copy()
        print(f"{name:9}", *shares(tids, arguments.seconds, total), flush=True)
        after = scheduler.threads[1 : n + 1]
        if case == "naps":
            runs = np.maximum(after["runs"] - before["runs"], 1)
            waits_us = (after["wait_ns"] - before["wait_ns"]) / runs / 1e3
            print("mean waits, us", *np.round(waits_us).astype(int), flush=True)


def starve(scheduler: Scheduler, count: int, seconds: float) -> None:
    began = time.monotonic()
    threads = scheduler.threads[1 : count + 1]
    while time.monotonic() - began < seconds and scheduler.exit() is None:
        time.sleep(min(5.0, seconds / 4))
        since = threads["queued_ns"].astype(np.int64)
        waits_s = np.where(since > 0, scheduler.now_ns() - since, 0) * 1e-9
        longest_s = max(waits_s.max(), threads["wait_max_ns"].max() * 1e-9)
        print(
            f"{time.monotonic() - began:.0f} s: longest wait now {waits_s.max():.2f} s, so far "
            f"{longest_s:.2f} s, never ran {int((threads['runs'] == 0).sum())}, "
            f"most urgent has {threads['run_ns'][0] * 1e-9 / (time.monotonic() - began):.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
