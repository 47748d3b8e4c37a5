"""Kernels that no test boots: what holds there of the checks that tests make on others.

    ./dev run python -m bench.guest.more_kernels [KERNEL ...] [--keep NAME]

KERNEL: of vagrant/kernels.py; without one all that work with sched_ext and are not in its matrix. A
kernel takes three minutes of CPU time.
"""

import argparse
import ast
import sys
from collections.abc import Iterator, Sequence

from bench import results
from bench.results import ROOT, Result, Row

CHECKS = {  # what is told of it: the file of tests/vm and its check
    "attached, ordered, put back": ("guest_backend", "check_order_and_restore"),
    "shares": ("guest_backend", "check_shares"),
    "order and bound": ("guest_scheduler", "check_strict_order_and_starvation_bound"),
    "a neighbour's share": ("guest_fair", "check_a_neighbour_keeps_its_share"),
    "killed, and put back": ("guest_robust", "check_controller_killed"),
    "threads born and dying": ("guest_robust", "check_threads_born_and_dying"),
}


def row(kernel: str) -> Row:
    """What each check said in guests of this kernel, with its full version."""
    import kernels
    from vm.boots import Boot, Command, Line, settings_of

    kernels.find(kernel)
    boots: dict[object, Boot] = {}
    places = {}
    for what, (file, check) in CHECKS.items():
        path = ROOT / "tests" / "vm" / f"{file}.py"
        settings = settings_of(ast.parse(path.read_text()))
        new = Boot.of(kernel, settings)
        boot = boots.setdefault(new.key, new)
        boot.expect((path, check), settings.get("TIMEOUT_S", 60))
        places[what] = boot, (path, check)
    version = Command(kernel, next(iter(boots.values())).options, ["uname", "-r"])
    line = Line([*boots.values(), version])
    try:
        for job in line.jobs:
            line.wait(job, lambda job=job: not job.wanted)  # type: ignore[misc]
    finally:
        line.close()
    figures: dict[str, results.Figure | str] = {}
    for what, (boot, place) in places.items():
        result = boot.results[place]
        tries = " at the second try" if result.first else ""
        figures[what] = f"{result.outcome}{tries}"
        if result.outcome != "passed":
            print(f"{kernel}, {what}: {result.text}", file=sys.stderr, flush=True)
    name = version.output.decode(errors="replace").split()
    return Row(name[0] if name else kernel, figures)


def rows(names: Sequence[str]) -> Iterator[Row]:
    """Of those that are at hand, or can be fetched."""
    import kernels

    for name in names:
        try:
            yield row(name)
        except kernels.KernelNotFound as error:
            print(f"not run: {error}", file=sys.stderr, flush=True)


def result(names: Sequence[str]) -> Result:
    here = results.here()  # the build at the begin
    return Result(
        title="Kernels that are not in the list of tests: what holds there",
        columns=list(CHECKS),
        n=1,
        spread=None,
        seeds=None,
        kernel=None,
        rows=list(rows(names)),
        **here,
    )


def main() -> None:
    import kernels

    known = [
        kernel.name
        for kernel in kernels.OTHERS
        if kernel.sched_ext is kernels.SchedExt.WORKS and kernel.architecture == "amd64"
    ]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", default=known)
    results.argument(parser)
    asked = parser.parse_args()
    results.tell(result(asked.kernels), asked.keep)


if __name__ == "__main__":
    main()
