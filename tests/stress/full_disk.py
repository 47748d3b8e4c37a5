"""Fills the disk of a controller's run folder at random moments, ends it, and looks what is left.

    ./dev run python -m stress.full_disk [--rounds 50] [--seed N]

As `kills`, with the run folder on a file system of 256 kB, as root. Some moment after it is full
the controller gets SIGTERM, in every other round, and has to end with all put back by itself; else
SIGKILL, and `restore` has to put back without any space.
"""

import argparse
import logging
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from stress.kills import LONGEST_S, child_of, in_child, states, two_engines

from sched_ctl.service import session

END_WITHIN_S = 30.0


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("--rounds", type=int, default=50)
    arguments.add_argument("--seed", type=int, default=random.randrange(10**6))
    given = arguments.parse_args()
    os.environ["SCHED_CTL_MACHINE_LOCK"] = "no"  # others' controllers are not ours to stop
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended
    logging.disable(logging.CRITICAL)  # that there is no space is no news here
    chance = random.Random(given.seed)
    wrong: list[str] = []
    changed = ended = 0
    with two_engines() as (settings, kind, pids):
        folder = settings.run_dir
        before = states(pids)
        mount = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "none", folder]
        subprocess.run(mount, check=True)
        try:
            for number in range(given.rounds):
                child = child_of(lambda: session.run(settings, {"lab": kind}))
                time.sleep(chance.uniform(0, LONGEST_S))
                fill(Path(folder))
                time.sleep(chance.uniform(0, 0.3))
                changed += states(pids) != before
                if number % 2:
                    os.kill(child, signal.SIGTERM)
                    status = end_of(child)
                    if status is None:
                        wrong.append(f"{number}: SIGTERM had no effect within {END_WITHIN_S:g} s")
                    if status == 0:
                        ended += 1
                        if states(pids) != before:
                            wrong.append(f"{number}: it ended well and left threads changed")
                else:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                problem = in_child(lambda: session.put_back(Path(folder)))
                if problem or states(pids) != before:
                    wrong.append(f"{number}: {problem or 'restore left threads changed'}")
                    before = states(pids)
                (Path(folder) / "filler").unlink()
        finally:
            subprocess.run(["umount", folder], check=True)
    for words in wrong:
        print(words)
    print(
        f"seed {given.seed}: {given.rounds} rounds, threads were changed in {changed}, "
        f"{ended} ended by SIGTERM with all put back, {len(wrong)} wrong"
    )
    sys.exit(bool(wrong) or not changed)


def fill(folder: Path) -> None:
    with suppress(OSError), (folder / "filler").open("ab", buffering=0) as file:
        while True:
            file.write(bytes(512))


def end_of(child: int) -> int | None:
    """Its status, or None if it had to be killed."""
    end_s = time.monotonic() + END_WITHIN_S
    while time.monotonic() < end_s:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


if __name__ == "__main__":
    main()
