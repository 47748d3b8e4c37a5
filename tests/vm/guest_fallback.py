"""Kernels on which sched_ext cannot be used: that is said before anything is loaded."""

import os

from vm.inside import look_until, text_of
from vm.machine import journal, progress, schedule, spinning

from sched_ctl.backends import ladder
from sched_ctl.backends.scx.probe import probe
from sched_ctl.kernel import schedext

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
