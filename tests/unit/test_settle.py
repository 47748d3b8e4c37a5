"""What is said of a query, as windows come and go."""

from itertools import pairwise

from sched_ctl.metrics.settle import Reading, Said, settle
from sched_ctl.metrics.verdicts import Verdict

KEEPS, STARVED, IDLE = Verdict.KEEPS_UP, Verdict.CPU_STARVED, Verdict.IDLE


def seen(*verdicts: Verdict, about: str = "q/a") -> list[Reading]:
    """By horizons of 2, 30 and 300 s."""
    return [
        Reading(seconds, verdict, about, 0.9)
        for seconds, verdict in zip((2.0, 30.0, 300.0), verdicts, strict=False)
    ]


def test_no_single_window_decides() -> None:
    first = settle(None, 0.0, seen(STARVED))
    assert first.verdict is STARVED and not first.settled
    again = settle(first, 3.0, seen(KEEPS, KEEPS))
    assert again.verdict is KEEPS and again.settled
    # One window that says something else, and then many
    assert settle(again, 4.0, seen(STARVED, KEEPS)).verdict is KEEPS
    assert settle(again, 30.0, seen(STARVED, STARVED)).verdict is STARVED


def test_horizons_that_never_agree_are_decided_by_the_longer_one_at_last() -> None:
    said = Said(KEEPS, "q/a", 0.9, 0.0, 0.0, settled=True)
    verdicts = []
    for second in range(40):
        last = KEEPS if second % 2 else IDLE
        said = settle(
            said, float(second), seen(last, STARVED) if second % 4 else seen(IDLE, STARVED)
        )
        verdicts.append(said.verdict)
    assert verdicts[29] is KEEPS and verdicts[-1] is STARVED
    assert sum(a is not b for a, b in pairwise(verdicts)) == 1


def test_a_tuple_in_three_seconds_makes_nothing_flap() -> None:
    """The last two seconds have one or none, half a minute always some."""
    said, changes = None, 0
    for second in range(0, 600, 2):
        last = KEEPS if second % 3 else IDLE
        before, said = said, settle(said, float(second), seen(last, KEEPS, KEEPS))
        changes += before is not None and before.verdict is not said.verdict
    assert said is not None and said.verdict is KEEPS and changes == 0
    # A tuple in two minutes: only five without any are idle.
    for second in range(600, 900, 30):
        said = settle(said, float(second), seen(IDLE, IDLE, KEEPS))
    assert said.verdict is KEEPS
    assert settle(said, 900.0, seen(IDLE, IDLE, IDLE)).verdict is IDLE


def test_whom_it_is_about_follows_once_two_agree() -> None:
    said = settle(None, 0.0, seen(STARVED, STARVED, about="q/a"))
    mixed = [*seen(STARVED, about="q/b"), *seen(STARVED, STARVED, about="q/a")[1:]]
    assert settle(said, 1.0, mixed).about == "q/a"
    found = settle(said, 2.0, seen(STARVED, STARVED, about="q/b"))
    assert (found.about, found.since_s) == ("q/b", 0.0)


def test_the_last_seconds_are_said_where_the_half_minute_cannot_tell() -> None:
    first = settle(None, 0.0, seen(STARVED, Verdict.UNKNOWN))
    assert first.verdict is STARVED and not first.settled
    # What was settled is not overruled by one window, known or not
    before = Said(KEEPS, "q/a", 0.9, 0.0, 0.0, settled=True)
    assert settle(before, 4.0, seen(STARVED, Verdict.UNKNOWN)).verdict is KEEPS


def test_what_was_said_when_somebody_looked_last_is_not_said_of_now() -> None:
    said = settle(None, 0.0, seen(STARVED, STARVED))
    assert said.settled
    # Each look counts, also one at which a horizon said something else
    for second, last, half in ((60.0, STARVED, KEEPS), (120.0, IDLE, STARVED)):
        said = settle(said, second, seen(last, half))
        assert (said.verdict, said.last_s) == (STARVED, second)
    unknown = seen(KEEPS, Verdict.UNKNOWN)
    assert settle(said, 200.0, unknown).verdict is STARVED
    later = settle(said, 7200.0, unknown)
    assert (later.verdict, later.since_s, later.settled) == (KEEPS, 7200.0, False)
