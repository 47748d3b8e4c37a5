"""What the hypervisor took, as /proc/stat tells it."""

from pathlib import Path

import pytest

from plans import plan
from sched_ctl.kernel.procfs import TICKS_PER_S
from sched_ctl.probes.stolen import EVERY_S, NEVER_YET_S, StolenTime

PAIR = plan({"q": ["a", "b"]})


def page(steal: int, user: int = 500) -> str:
    return f"cpu  {user} 20 300 9000 7 0 80 {steal} 5 0\ncpu0 1 2 3 4 5 6 7 8 9 0\nintr 5 0 0\n"


def test_as_counters_of_all_cpus(tmp_path: Path) -> None:
    path = tmp_path / "stat"
    path.write_text(page(30))
    probe = StolenTime(path)
    found = probe.read(PAIR, 5.0)
    assert found["cpu_steal"].tolist() == [30 / TICKS_PER_S] * 2
    assert found["cpu_busy"].tolist() == [900 / TICKS_PER_S] * 2
    path.write_text(page(90))
    assert probe.read(PAIR, 5.0 + EVERY_S / 2)["cpu_steal"][0] == 30 / TICKS_PER_S
    assert probe.read(PAIR, 5.0 + EVERY_S)["cpu_steal"][0] == 90 / TICKS_PER_S


@pytest.mark.parametrize("text", [page(0), "", "cpu 1 2 3\n", "cpu a b c d e f g h\n", None])
def test_nothing_where_nothing_is_told(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "stat"
    if text is not None:
        path.write_text(text)
    probe = StolenTime(path)
    assert probe.read(PAIR, 5.0) == {}
    path.write_text(page(9))
    assert probe.read(PAIR, 5.0 + NEVER_YET_S / 2) == {}  # looked at now and then
    assert probe.read(PAIR, 5.0 + NEVER_YET_S)
