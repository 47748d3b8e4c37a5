"""`./dev demo --guest`: `sched-ctl demo` under sched_ext, in a guest whose kernel has it.

For machines whose own kernel has none. The guest's clock counts instructions, so what is shown is
exact, whatever else this machine does. Takes about three minutes.
"""

import argparse
import contextlib
import sys
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import msgspec

from sched_ctl.demo.report import report
from sched_ctl.demo.run import signals_raise
from sched_ctl.errors import UserError

LIMIT_S = 1200.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev demo --guest", description=__doc__.splitlines()[0])
    parser.add_argument("--phases", type=int, default=2, help="under each scheduler (2)")
    parser.add_argument("--phase", type=float, default=6.0, help="seconds of a phase (6)")
    parser.add_argument("--out", type=Path, default=Path("sched-ctl-demo"), help="for the picture")
    given = parser.parse_args()
    if not (given.phases >= 2 and given.phase >= 0.5):  # before a guest is booted for it
        parser.error("--phases takes 2 or more, --phase 0.5 seconds or more")
    command = [
        *(str(Path(sys.prefix, "bin", "sched-ctl")), "demo", "--backend", "scx", "--period", "1"),
        *("--slow", "--json", "--no-picture"),
        *("--phases", str(given.phases), "--phase", f"{given.phase:g}"),
    ]
    try:
        with signals_raise(), contextlib.closing(lines(command)) as said:
            found = answer(said)
    except UserError as error:
        print(f"error: {error.message}", file=sys.stderr)
        sys.exit(f"hint: {error.hint}" if error.hint else 1)
    report(found, given.out)


def lines(command: list[str]) -> Generator[str, None, None]:
    """What the command prints in a guest; raises UserError if there is none, or it takes too long.

    Closed, it ends its guest.
    """
    import guest
    import kernels

    try:
        name, image = kernels.with_sched_ext()
        print(f"in a guest with kernel {name}, a CPU that does 500 million instructions a second")
        options = guest.Options(
            cpus=1, icount=True, memory="2G", timeout_s=LIMIT_S, append=kernels.append(name)
        )
        rest = b""
        with guest.boot(image, command, options) as machine:
            for piece in machine.output():
                *whole, rest = (rest + piece).split(b"\n")
                yield from (line.decode(errors="replace") for line in whole)
    except (guest.GuestError, kernels.KernelNotFound) as error:
        message, _, hint = str(error).partition("\nhint: ")
        raise UserError(message, hint or None) from error
    if machine.returncode:
        raise UserError(f"the demo in the guest ended with {machine.returncode}", "see above")
    if machine.returncode is None:
        raise UserError("the guest died", f"its last words: {machine.log[-500:]}")


def answer(said: Iterable[str]) -> dict[str, Any]:
    """The result in what `sched-ctl demo --json` says; all before it is passed on."""
    told: list[str] = []
    for line in said:
        if told or line == "{":
            told.append(line)
        else:
            print(line, file=sys.stderr, flush=True)
    found: dict[str, Any] = msgspec.json.decode("\n".join(told))
    return found


if __name__ == "__main__":
    main()
