"""What tracing costs here, in CPU time: `python -m bench.real.traced`.

Two threads on one CPU do nothing but wake each other over pipes, then yield to each other
(bench/guest/switches.c): not traced, while another process is traced, and traced, in turns by lot,
with wake-ups or without (with interrupts noted, where the kernel's data has no symbols).
The CPU time of a run is compared with that of the one not traced beside it. Other load changes what
a switch costs; bench.guest.kernel --switches counts instructions instead, and repeats.
"""

import argparse
import os
import platform
import random
import statistics
import subprocess
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench import results
from bench.guest.kernel import built
from bench.results import Figure, Result, Row
from sched_ctl.kernel import tracing

NONE, OTHER, OWN = "not traced", "another process is traced", "these are traced"
KINDS = {  # whose is traced, and whether wake-ups are
    NONE: (NONE, False),
    OTHER: (OTHER, False),
    OWN: (OWN, False),
    "another process's wake-ups": (OTHER, True),
    "these, with wake-ups": (OWN, True),
}


def cpu_s(program: Path, whose: str, wakings: bool) -> float:
    """CPU time of one run of the program, s; with its start, which brings ratios nearer to 1."""
    here = partial(os.sched_setaffinity, 0, {max(os.sched_getaffinity(0))})
    child = subprocess.Popen(
        [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=here
    )
    assert child.stdin is not None and child.stdout is not None
    lines = child.stdout
    while next(lines).strip() != "ready":
        pass
    with ExitStack() as stack:
        if whose != NONE:
            followed = child.pid if whose == OWN else os.getpid()
            stack.enter_context(tracing.Tracer([followed], wakings=wakings))
        child.stdin.close()
        lines.read()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{program.name} exited with {child.returncode}")
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100, help="of one turn each (%(default)s)")
    results.argument(parser)
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error("--rounds is 2 or more")
    if (why := tracing.obstacle()) is not None:
        parser.error(f"nothing can be traced: {why}")
    program, kinds = built("switches"), list(KINDS)
    rounds = []
    for _ in range(arguments.rounds):
        order = random.sample(kinds, len(kinds))
        rounds.append({kind: cpu_s(program, *KINDS[kind]) for kind in order})
    rows = []
    for kind in kinds:
        ratios = sorted(each[kind] / each[NONE] for each in rounds)
        low, _, high = statistics.quantiles(ratios, n=4)
        rows.append(Row(kind, {"CPU time": Figure(statistics.median(ratios), low, high)}))
    told = Result(
        title="CPU time of two threads that wake each other and yield, by that of those not traced",
        columns=["CPU time"],
        n=arguments.rounds,
        spread="median; middle half",
        seeds=None,
        kernel=platform.release(),
        rows=rows,
        **results.here(),
    )
    results.tell(told, arguments.keep)


if __name__ == "__main__":
    main()
