"""`auto` as a race, with a real engine near the end of one CPU, by whatever backend works here."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from labs import loaded, nices, sched_ctl, spe

from support import wait_until

pytestmark = [pytest.mark.host, pytest.mark.needs("root", "cc")]


def test_the_race_keeps_nothing_that_is_worse_and_all_is_put_back(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"

    def race() -> dict[str, Any]:
        answer = msgspec.json.decode(sched_ctl("status", "--json", "--run-dir", str(run_dir)))
        [rule] = answer["policies"]
        return (rule["race"] | {"effects": answer["effects"]}) if rule["race"] else {}

    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})  # of the engine, which is started by this thread
    try:
        engine_of = spe("mixed", "--utilisation", "0.95", duration_s=150)
        engine = engine_of.__enter__()
    finally:
        os.sched_setaffinity(0, cpus)
    try:
        before = nices(engine)
        with loaded(
            run_dir,
            *("--race", "0.2", "--period", "0.02", "--cpu-limit", "0", "--backend", "nice"),
            engine=engine,
        ):
            wait_until((run_dir / "control.sock").exists, 30)
            seen: list[dict[str, Any]] = []

            def over() -> bool:
                seen.append(race())
                return bool(seen[-1].get("races"))

            wait_until(over, 120)
            ended = seen[-1]
            status = sched_ctl("status", "--all", "--run-dir", str(run_dir))
        after = nices(engine)
    finally:
        engine_of.__exit__(None, None, None)
    print(ended["words"])
    arms = {arm["arm"]: arm for arm in ended["arms"]}
    assert arms.keys() == {"os", "light-first", "hr"}
    tried = [arm for name, arm in arms.items() if name != "os"]
    assert all(arm["time_ratio"] is not None for arm in tried), "each was compared"
    kept = ended["kept"]
    if ended["mode"] == "kept" and kept != "os":  # it may have been opened again
        assert arms[kept]["time_ratio"] < 1 and arms[kept]["out"] is None
    effects = {effect["query"]: effect for effect in ended["effects"]}
    assert effects.keys() == {"alarms", "meters", "status", "archive"}
    assert effects["alarms"]["source"] == "counted" and effects["alarms"]["p99_s"] > 0
    assert "note: policy auto: " in status and "alarms" in status
    assert after == before, "all is put back"
