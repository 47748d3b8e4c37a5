"""The thread that gives the sign of life, and notices the scheduler's end."""

from sched_ctl.backends.scx.monitor import Monitor
from sched_ctl.kernel.scheduler import Exit


class Ended:
    """A scheduler that ends after some signs of life; `done`: what became of it, in order."""

    def __init__(self, beats: int) -> None:
        self.left = beats
        self.done: list[str] = []

    def beat(self) -> None:
        self.left -= 1

    def exit(self) -> Exit | None:
        return None if self.left else Exit("SYSRQ", 0, "", "")

    def detach(self) -> None:
        self.done.append("detached")


def test_a_scheduler_that_has_ended_is_detached_before_anybody_hears_of_it() -> None:
    scheduler = Ended(3)
    monitor = Monitor(
        scheduler,  # type: ignore[arg-type]
        0.001,
        lambda exit_: scheduler.done.append(exit_.kind),
    )
    monitor.start()
    monitor.join(10)
    assert scheduler.done == ["detached", "SYSRQ"]
