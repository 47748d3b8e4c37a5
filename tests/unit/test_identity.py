"""Pinned threads leave descriptors for everything else."""

import dataclasses
import os
import resource
import subprocess
import sys

import pytest

from sched_ctl.drivers.threads import thread_of
from sched_ctl.kernel import identity
from support import wait_until

PIN_MANY = """
import os, resource
from sched_ctl.drivers.threads import thread_of
from sched_ctl.kernel import descriptors, identity
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 256))
own = thread_of(os.getpid(), os.getpid())
pins = [identity.pin(own)[0] for _ in range(400)]
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (256, 256)
assert pins[0] != identity.UNPINNED and pins[-1] == identity.UNPINNED
assert all(identity.is_alive(own, pin) for pin in pins)
others = [os.open("/dev/null", os.O_RDONLY) for _ in range(descriptors.RESERVE - 1)]
"""


def test_a_thread_is_alive_until_it_is_unpinned() -> None:
    own = thread_of(os.getpid(), os.getpid())
    assert own is not None
    found = identity.pin(own)
    assert found is not None
    assert identity.is_alive(own, found[0])
    identity.unpin(found[0])


def test_a_thread_with_another_start_time_is_another() -> None:
    own = thread_of(os.getpid(), os.getpid())
    assert own is not None and own.key == (os.getpid(), own.start_time)
    now = identity.same(own)
    assert now is not None and now.tid == own.tid
    assert identity.same(dataclasses.replace(own, start_time=own.start_time - 1)) is None
    assert identity.same(dataclasses.replace(own, tid=0)) is None


def test_a_zombie_does_not_run() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        born = thread_of(child.pid, child.pid)
        assert born is not None
        assert identity.runs(child.pid, born.start_time)
        assert not identity.runs(child.pid, born.start_time - 1)
        assert child.stdin is not None and child.stdout is not None
        child.stdin.close()
        child.stdout.read()
        wait_until(lambda: not identity.runs(child.pid, born.start_time), what="cat to end")
        assert identity.same(born) is not None  # nobody has waited for it yet


@pytest.mark.parametrize("hidden", [False, True], ids=["by descriptor", "without"])
def test_a_lifetime_ends_before_the_parent_has_noticed(
    hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if hidden:  # a kernel before 5.3, or a filter of system calls
        monkeypatch.setattr(os, "pidfd_open", lambda pid: os.open("/nowhere", os.O_RDONLY))
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        lifetime = identity.Lifetime(child.pid)
        assert lifetime.lasts()
        assert child.stdin is not None
        child.stdin.close()
        wait_until(lambda: not lifetime.lasts(), what="cat to end")
        assert identity.Lifetime(child.pid).lasts() is False
    assert not lifetime.lasts()
    lifetime.close()
    assert not identity.Lifetime(child.pid).lasts()


def test_more_threads_than_descriptors() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    subprocess.run([sys.executable, "-c", PIN_MANY], check=True)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
