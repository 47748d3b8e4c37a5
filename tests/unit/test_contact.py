"""What is told of an engine's stops at first contact."""

import pytest

from bench.guest.contact import OWN, row
from bench.guest.contact_inside import stops_ms
from bench.results import Figure

LOG = """[5100000000ns] Safepoint "GenCollectForAllocation", At safepoint: 3 ns, Total: 40000000 ns
[5500000000ns] Application threads stopped
[6000000000ns] Safepoint "PrintThreads", Cleanup: 2 ns, At safepoint: 3 ns, Total: 300000000 ns
"""


def test_when_nothing_ran_at_all_is_no_stop_of_the_machine() -> None:
    still = [(5.0, 5.07), (5.695, 5.72), (5.9, 5.95)]
    found = stops_ms(LOG, still)
    assert [why for why, _ in found] == ["GenCollectForAllocation", "PrintThreads"]
    assert [ms for _, ms in found] == pytest.approx([30, 230])
    assert [ms for _, ms in stops_ms(LOG, [])] == pytest.approx([40, 300])


def test_what_a_java_machine_stops_for_of_itself_is_told_apart() -> None:
    stops = {"tm": stops_ms(LOG, []), "jm": []}
    figures = row([{"stretch": "first", "cpu_s": {"tm": 1.0}, "stops_ms": stops}]).figures
    assert figures["why"] == "PrintThreads"
    assert figures["longest stop for us"] == Figure(300.0, 1.0, 1.0, "ms")
    quiet = {"tm": stops_ms(LOG.partition("\n")[0], []), "jm": []}
    figures = row([{"stretch": "first", "cpu_s": {"tm": 1.0}, "stops_ms": quiet}]).figures
    assert figures["longest stop for us"] == Figure(0.0, unit="ms")
    for theirs in ("GenCollectFull", "CollectForMetadataAllocation", "Cleanup", "G1PauseRemark"):
        assert OWN.search(theirs)
    for ours in ("PrintThreads", "PrintJNI", "FindDeadlocks", "ThreadDump", "HeapDumper"):
        assert not OWN.search(ours)
