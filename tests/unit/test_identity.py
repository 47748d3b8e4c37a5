"""Pinned threads leave descriptors for everything else."""

import os
import resource
import subprocess
import sys

from sched_ctl.kernel import identity, procfs

PIN_MANY = """
import os, resource
from sched_ctl.kernel import identity, procfs
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 256))
own = procfs.thread(os.getpid(), os.getpid())
pins = [identity.pin(own)[0] for _ in range(400)]
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (256, 256)
assert pins[0] != identity.UNPINNED and pins[-1] == identity.UNPINNED
assert all(identity.is_alive(own, pin) for pin in pins)
others = [os.open("/dev/null", os.O_RDONLY) for _ in range(identity.RESERVE - 1)]
"""


def test_a_thread_is_alive_until_it_is_unpinned() -> None:
    own = procfs.thread(os.getpid(), os.getpid())
    assert own is not None
    found = identity.pin(own)
    assert found is not None
    assert identity.is_alive(own, found[0])
    identity.unpin(found[0])


def test_more_threads_than_descriptors() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    subprocess.run([sys.executable, "-c", PIN_MANY], check=True)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
