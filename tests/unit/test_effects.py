"""What came of it: times in the system by each source, and what happens when a source is silent."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from plans import array, plan
from sched_ctl.adapt.effect import (
    AWAKE,
    COUNTED,
    LITTLE,
    MOST_LENGTHS,
    MOST_SAMPLES,
    REPORTED,
    Span,
    begin,
    effects,
    seen,
)
from sched_ctl.adapt.race import MEDIAN, Figures, compare
from sched_ctl.model.topology import Latencies, Snapshot, Topology

NAN = math.nan


def snapshot(
    topology: Topology, time_s: float, latencies: Latencies | None = None, /, **columns: object
) -> Snapshot:
    arrays = {name: np.array(values, dtype=float) for name, values in columns.items()}
    return Snapshot(topology, time_s, arrays, latencies=latencies)


def steady(
    topology: Topology,
    rates: list[float],
    queues: list[float],
    seconds: int = 10,
    **more: list[float],
) -> Span:
    """A span of so many seconds at these rates and queues, a sample each second."""
    span = None
    for second in range(seconds + 1):
        count = [rate * second for rate in rates]
        counters = {name: [value * second for value in values] for name, values in more.items()}
        span = seen(
            span,
            snapshot(
                topology,
                100.0 + second,
                tuples_in=count,
                tuples_out=count,
                queue_size=queues,
                **counters,
            ),
        )
    assert span is not None
    return span


def test_littles_law_adds_up_along_the_way() -> None:
    """In a chain of 100/s, 10 and 5 tuples that wait are 0.1 and 0.05 s."""
    [effect] = effects(steady(plan({"q": "abc"}), [100, 100, 100], [NAN, 10, 5]))
    assert effect.key == ("lab:1", "q")
    assert effect.source == LITTLE and effect.time_s == pytest.approx(0.15)
    assert effect.tuples_in == effect.tuples_out == 100
    assert effect.error == 0.0 and math.isnan(effect.p99_s)


def test_of_several_ways_the_mean_by_the_tuples_that_take_them() -> None:
    """A fork to b (30/s, 0.2 s) and c (10/s, 1 s), both of them egresses."""
    topology = plan({"q": "abc"}, [(0, 1), (0, 2)])
    [effect] = effects(steady(topology, [40, 30, 10], [0, 6, 10]))
    assert effect.time_s == pytest.approx((30 * 0.2 + 10 * 1.0) / 40)
    assert effect.tuples_out == 40


def test_half_of_the_tuples_may_take_a_way_on_which_nothing_waits() -> None:
    """A fork, joined again: b (30/s, 0.01 s) and c (10/s, 4 s), and 0.005 s for both in d."""
    topology = plan({"q": "abcd"}, [(0, 1), (0, 2), (1, 3), (2, 3)])
    span = steady(topology, [40, 30, 10, 40], [0, 0.3, 40, 0.2])
    [effect] = effects(span)
    assert effect.time_s == pytest.approx((30 * 0.01 + 10 * 4) / 40 + 0.005)
    assert effect.p50_s == pytest.approx(0.015)
    [alike] = effects(steady(topology, [40, 30, 10, 40], [0, 12, 4, 0.2]))
    assert alike.p50_s == pytest.approx(alike.time_s) == pytest.approx(0.405)
    [other] = effects(steady(topology, [40, 10, 30, 40], [0, 0.1, 120, 0.2]))
    assert other.p50_s == pytest.approx(4.005)


def test_a_lower_mean_for_which_half_of_the_tuples_pay_is_told_apart() -> None:
    """The system's own lets c have the whole backlog; the longest queue first makes all wait."""
    topology = plan({"q": "abcd"}, [(0, 1), (0, 2), (1, 3), (2, 3)])
    rates = [40.0, 30, 10, 40]
    own, longest = (
        Figures(effects(steady(topology, rates, queues)))
        for queues in ([0.0, 0.3, 40, 0.2], [0.0, 12, 4, 0.2])
    )
    score = compare(longest, own)
    assert score.time < 0 < MEDIAN < score.median


def lengths_seen(lengths: Sequence[float]) -> Span:
    """100/s through a queue of these lengths, a sample each second."""
    topology = plan({"q": "ab"})
    span = begin(snapshot(topology, 0, tuples_in=[0, 0], tuples_out=[0, 0], queue_size=[0, 0]))
    for second, length in enumerate(lengths, 1):
        count = [100 * second] * 2
        columns = {"tuples_in": count, "tuples_out": count, "queue_size": [0, length]}
        span = seen(span, snapshot(topology, second, **columns))
    return span


def test_half_of_the_tuples_may_come_when_nothing_waits() -> None:
    """A length that is not told counts as the mean of the others."""
    [effect] = effects(lengths_seen([0, 0, 100, 0, 0, 100, 100, 0, 0, 0]))
    assert effect.time_s == pytest.approx(0.3) and effect.p50_s == 0
    [effect] = effects(lengths_seen([0, 0, 100, NAN, 0, 100, 100, 0, NAN, NAN]))
    assert effect.p50_s == pytest.approx(effect.time_s) == pytest.approx(3 / 7)


def test_lengths_of_long_spans_are_kept_evenly() -> None:
    """Of a queue as long as the second is late, the half is the middle."""
    span = lengths_seen(range(1, 301))
    assert len(span.lengths) <= MOST_LENGTHS
    assert effects(span)[0].p50_s == pytest.approx(1.5, abs=0.1)


def test_the_half_counts_ends_by_their_tuples_and_queries_by_themselves() -> None:
    """q: a fork to b and c, both of them ends; r: a chain; s: on a cycle, of which none is told."""
    edges = [(0, 1), (0, 2), (3, 4), (5, 6), (6, 5), (6, 7)]
    topology = plan({"q": "abc", "r": "ab", "s": "abc"}, edges)
    rates = [40.0, 30, 10, 20, 20, 5, 5, 5]
    found = effects(steady(topology, rates, [0, 6, 10, 0, 2, 0, 3, 4]))
    assert [e.p50_s for e in found[:2]] == pytest.approx([0.2, 0.1])
    assert math.isnan(found[2].time_s) and math.isnan(found[2].p50_s)
    [alone] = effects(steady(plan({"s": "abc"}, [(0, 1), (1, 0), (1, 2)]), [5.0] * 3, [0, 3, 4]))
    assert math.isnan(alone.time_s) and math.isnan(alone.p50_s)
    quiet = effects(steady(topology, [0.0] * 8, [0, 6, 10, 0, 0, 0, 0, 0]))
    assert quiet[0].p50_s == 10 and quiet[1].p50_s == 0


def test_a_reported_mean_has_the_half_by_queues_and_wake_ups_have_none() -> None:
    topology = plan({"q": "abc"}, [(0, 1), (0, 2)])
    span = steady(topology, [40, 30, 10], [0, 6, 10], latency=[0.4, 0, 0])
    [effect] = effects(span)
    assert effect.source == REPORTED and effect.p50_s == pytest.approx(0.2)
    guessed = replace(topology, guessed=True)
    awake = steady(
        guessed, [40, 30, 10], [0, 6, 10], run_delay=[0.1, 0.2, 0.3], thread_cpu_time=[0.1] * 3
    )
    [effect] = effects(awake)
    assert effect.source == AWAKE and math.isnan(effect.p50_s)


def test_queries_are_told_apart() -> None:
    topology = plan({"quick": "ab", "slow": "ab"})
    quick, slow = effects(steady(topology, [50, 50, 10, 10], [0, 0, 0, 20]))
    assert (quick.time_s, slow.time_s) == (0.0, 2.0)


def test_what_is_taken_from_nowhere_has_waited_all_the_while() -> None:
    [effect] = effects(steady(plan({"q": "ab"}), [10, 0], [0, 7]))
    assert effect.time_s == 10.0


def test_of_a_queue_whose_rate_is_not_told_nothing_is_concluded() -> None:
    """As long as it is looked at, none of them waits for longer."""
    topology = plan({"q": "abc"})
    for seconds in (10, 20):
        [effect] = effects(steady(topology, [100, NAN, 100], [NAN, 7, 5], seconds))
        assert effect.source == LITTLE and effect.time_s == pytest.approx(0.05)


def test_without_queues_counters_tell_what_is_under_way() -> None:
    topology = plan({"q": "ab"})
    span = begin(snapshot(topology, 0, tuples_in=[0, 0], tuples_out=[0, 0]))
    for second in range(1, 11):
        count = [100 * second, 100 * second - 50]
        span = seen(span, snapshot(topology, second, tuples_in=count, tuples_out=count))
    [effect] = effects(span)
    assert effect.source == LITTLE and effect.time_s == pytest.approx(50 / 95)


def test_an_engine_that_tells_nothing_has_no_time() -> None:
    topology = plan({"q": "ab"})
    span = seen(begin(snapshot(topology, 0)), snapshot(topology, 1))
    [effect] = effects(span)
    assert effect.source == "unknown"
    assert math.isnan(effect.time_s) and math.isnan(effect.tuples_in)
    [effect] = effects(begin(snapshot(topology, 0)))
    assert effect.seconds == 0 and math.isnan(effect.time_s)


@pytest.mark.parametrize("waiting", [9e18, 2e9])
def test_a_time_that_cannot_be_is_unknown(waiting: float) -> None:
    [effect] = effects(steady(plan({"q": "ab"}), [1, 1], [NAN, waiting]))
    assert effect.source == "unknown" and math.isnan(effect.time_s)
    assert effect.tuples_in == effect.tuples_out == 1
    [effect] = effects(steady(plan({"q": "ab"}), [1, 1], [NAN, 1e304]))
    assert effect.time_s < 1  # by what is counted instead


def latencies(tuples: float, total_s: float, counts: list[float]) -> Latencies:
    low_s = array(0, 0.01, 0.02, 0.04, 0.08)
    return Latencies(np.array([1]), array(tuples), array(total_s), low_s, np.array([counts]))


def counted(first: Latencies | None, now: Latencies | None) -> Span:
    topology = plan({"q": "ab"})
    flow = {"tuples_in": [0, 0], "tuples_out": [0, 0], "queue_size": [0, 5]}
    later = {name: [100, 100] for name in ("tuples_in", "tuples_out")} | {"queue_size": [0, 5]}
    return seen(begin(snapshot(topology, 0, first, **flow)), snapshot(topology, 1, now, **later))


def test_latencies_that_the_engine_counts_go_first() -> None:
    span = counted(latencies(10, 50, [0, 0, 0, 0, 10]), latencies(110, 52, [0, 60, 38, 2, 10]))
    [effect] = effects(span, {"q": 0.02})
    assert effect.source == COUNTED and effect.time_s == pytest.approx(0.02)
    assert effect.p50_s == pytest.approx(0.015) and effect.p99_s == pytest.approx(0.06)
    assert effect.within_target == pytest.approx(0.6)
    assert math.isnan(effects(span)[0].within_target)


@pytest.mark.parametrize(
    ("first", "now"),
    [
        (latencies(10, 1, [10, 0, 0, 0, 0]), latencies(10, 1, [10, 0, 0, 0, 0])),  # no more
        (latencies(10, 1, [10, 0, 0, 0, 0]), latencies(4, 1, [4, 0, 0, 0, 0])),  # restarted
        (latencies(10, 1, [10, 0, 0, 0, 0]), latencies(NAN, math.inf, [NAN] * 5)),
        (latencies(10, 1, [10, 0, 0, 0, 0]), latencies(1e300, 1.7e308, [1e308] * 5)),
        (latencies(10, 1, [10, 0, 0, 0, 0]), None),
        (None, latencies(10, 1, [10, 0, 0, 0, 0])),
    ],
)
def test_an_engine_that_stops_telling_is_judged_by_its_queues(
    first: Latencies | None, now: Latencies | None
) -> None:
    [effect] = effects(counted(first, now))
    assert effect.source == LITTLE and effect.time_s == pytest.approx(0.05)


def test_a_mean_that_the_engine_reports_goes_before_littles_law_until_it_stops() -> None:
    topology = plan({"q": "ab"})
    span = None
    for second, told in enumerate([0.2, 0.2, 0.4, 0.6]):
        columns = {"tuples_in": [9 * second] * 2, "tuples_out": [9 * second] * 2}
        span = seen(
            span, snapshot(topology, second, latency=[NAN, told], queue_size=[0, 9], **columns)
        )
    assert span is not None
    [effect] = effects(span, {"q": 0.4})
    assert effect.source == REPORTED and effect.time_s == pytest.approx(0.4)
    assert effect.within_target == pytest.approx(2 / 3) and effect.error > 0.2
    gone = {"tuples_in": [36] * 2, "tuples_out": [36] * 2, "queue_size": [0, 9]}
    [effect] = effects(seen(span, snapshot(topology, 4, **gone)))
    assert effect.source == LITTLE and effect.time_s == pytest.approx(1.0)


def test_targets_by_littles_law_are_met_in_so_many_samples() -> None:
    topology = plan({"q": "ab"})
    span = None
    for second in range(11):
        count = [100 * second] * 2
        queue = [0, 10 if second % 5 else 110]
        span = seen(
            span, snapshot(topology, second, tuples_in=count, tuples_out=count, queue_size=queue)
        )
    assert span is not None
    [effect] = effects(span, {"q": 0.5})
    assert effect.time_s == pytest.approx(0.3) and effect.within_target == pytest.approx(0.8)
    assert 0 < effect.error < 1


@pytest.mark.parametrize(("every", "time_s"), [(5, 0.15), (2, 0.15), (1, NAN)])
def test_a_queue_that_is_not_told_now_and_then_is_not_an_empty_one(
    every: int, time_s: float
) -> None:
    """At 100/s, 10 and 5 tuples wait; now and then the first is not told."""
    topology, span = plan({"q": "abc"}), None
    for second in range(12):
        count = [100.0 * second] * 3
        silent = second % every == 0 and second != 3
        queue = [NAN, NAN if silent else 10, 5]
        span = seen(
            span, snapshot(topology, second, tuples_in=count, tuples_out=count, queue_size=queue)
        )
    assert span is not None
    [effect] = effects(span, {"q": 0.2})
    assert effect.time_s == pytest.approx(time_s, nan_ok=True)
    if math.isfinite(time_s):
        assert effect.within_target == 1.0 and effect.error == pytest.approx(0, abs=1e-9)


def test_clocks_that_jump_begin_a_new_span() -> None:
    topology = plan({"q": "ab"})
    span = steady(topology, [10, 10], [0, 1])
    for time_s in (50.0, 110.0 + 31.0, NAN):
        after = seen(span, replace(span.now, time_s=time_s))
        assert after.seconds == 0 or math.isnan(after.seconds)
        assert len(after.queues) == 0
        assert math.isnan(effects(after)[0].time_s)
    assert seen(span, span.now) is span
    other = plan({"q": "abc"})
    assert seen(span, snapshot(other, 111.0)).seconds == 0


def test_looks_that_are_a_minute_apart_make_a_span() -> None:
    topology, span = plan({"q": "ab"}), None
    for minute in range(5):
        count = [6000.0 * minute] * 2
        span = seen(
            span,
            snapshot(topology, 60 * minute, tuples_in=count, tuples_out=count, queue_size=[0, 20]),
        )
    assert span is not None and span.seconds == 180, "one of them showed how far they are apart"
    [effect] = effects(span)
    assert effect.time_s == pytest.approx(0.2) and effect.tuples_in == pytest.approx(100)


def test_waits_for_a_cpu_add_up_along_the_way() -> None:
    """Threads that wait 0.2 s a second, over 100 tuples a second, and 0.1 s: 3 ms a tuple."""
    span = steady(plan({"q": "ab"}), [100, 100], [0, 0], run_delay=[0.2, 0.1])
    assert effects(span)[0].cpu_wait_s == pytest.approx(0.003)


def test_where_nobody_counts_tuples_it_is_the_time_that_threads_are_awake() -> None:
    """0.2 s of waits and 0.1 s of work a second over 100 wake-ups: 3 ms in each of two."""
    topology = replace(plan({"q": "ab"}), guessed=True)
    waited, used = [0.2, 0.1], [0.1, 0.2]
    span = steady(topology, [100, 100], [7, 7], run_delay=waited, thread_cpu_time=used)
    [effect] = effects(span)
    assert effect.time_s == pytest.approx(0.006) and effect.source == AWAKE
    # The second one never slept, in 10 s.
    span = steady(topology, [100, 0], [7, 7], run_delay=waited, thread_cpu_time=used)
    [effect] = effects(span)
    assert effect.time_s == pytest.approx(3.003)


def test_long_spans_keep_a_bounded_number_of_samples() -> None:
    topology = plan({"q": "ab"})
    span = None
    for tick in range(3 * MOST_SAMPLES):
        count = [tick] * 2
        span = seen(
            span,
            snapshot(topology, tick / 10, tuples_in=count, tuples_out=count, queue_size=[0, 5]),
        )
    assert span is not None and len(span.queues) <= MOST_SAMPLES and span.stride == 4
    assert effects(span)[0].time_s == pytest.approx(0.5)
