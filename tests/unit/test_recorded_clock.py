"""What a gateway records while its clock is set."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import QUICK, FakeBackend, FakeEngine, backends, drive

from sched_ctl.controller.loop import Controller
from sched_ctl.service.recording import Recording
from sched_ctl.telemetry import records
from sched_ctl.telemetry.recorder import Recorder

AHEAD_S = 3 * 3600.0


@pytest.mark.parametrize("by_s", [AHEAD_S, -AHEAD_S])
def test_a_clock_that_is_set_counts_from_then_on(
    by_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topology goes on unchanged all the time."""
    controller = Controller(QUICK, FakeEngine.kind(FakeEngine()), backends(FakeBackend()))
    recorder = Recorder(tmp_path, "n", limit_bytes=1 << 20, rotate_s=3600.0)
    put: list[records.Line] = []

    def kept(line: records.Line, _: str) -> bool:
        put.append(line)
        return True

    monkeypatch.setattr(recorder, "put", kept)
    recording = Recording(controller, recorder, 0.1)
    controller.noted = recording.note
    clock, set_s = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: clock() + set_s[0])
    before: list[records.Line] = []

    def found() -> list[records.Record]:
        return [line for line in put if isinstance(line, records.Record)]

    async def until(condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.005)

    async def script() -> None:
        await until(lambda: len(found()) >= 2)
        before.extend(found())
        set_s[0] = by_s
        await until(lambda: len(found()) >= len(before) + 2)

    begin_s = clock()
    drive(controller, script)
    recording.close()
    end_s = clock()
    for record in found():
        ahead_s = 0.0 if record in before else by_s
        assert begin_s - 1 <= record.t * 1e-3 - ahead_s <= end_s + 1
    assert len([line for line in put if isinstance(line, records.Topology)]) == 1
