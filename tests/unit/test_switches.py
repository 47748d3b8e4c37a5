"""Another policy while a metric is beyond a threshold."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from fakes import FakeBackend, FakeEngine, backends

from sched_ctl.config.dump import dump
from sched_ctl.config.files import load
from sched_ctl.config.settings import Section, SettingError, Settings, Switch
from sched_ctl.controller.loop import Controller
from sched_ctl.controller.switches import Watch
from sched_ctl.metrics.catalogue import MissingMetric
from sched_ctl.service import views
from sched_ctl.service.sections import check_sections


def states(switch: Switch, values: list[float]) -> list[bool]:
    """Whether the switch is on after each value, one a second."""
    watch = Watch(switch)
    found = []
    for now_s, value in enumerate(values):
        watch.look(value, float(now_s))
        found.append(watch.on)
    return found


NAN = float("nan")


@pytest.mark.parametrize(
    ("switch", "values", "on"),
    [
        # Two seconds above 10 to come, two below 4 to go; what is between the two changes nothing.
        ({"above": 10, "back": 4}, [11, 11, 11, 5, 5, 5, 3, 3, 3, 11], "0011111100"),
        ({"above": 10, "back": 4}, [11, 11, 9, 11, 11, 9, 11, 11, 11], "000000001"),
        ({"above": 10, "back": 4}, [11, NAN, 11, 11, 11], "00001"),
        ({"above": 10, "back": 4}, [11, 11, 11, 3, 3, 5, 3, 3, 3], "001111110"),
        ({"above": 10}, [11, 11, 11, 8.1, 8.1, 8.1, 7.9, 7.9, 7.9], "001111110"),
        ({"below": 10}, [9, 9, 9, 12, 12, 12, 13, 13, 13], "001111110"),
        ({"below": 0.5, "back": 0.5, "lasting": 0}, [0.4, 0.6, 0.4, NAN], "1011"),
        # Of what is never below 0.
        ({"above": 0}, [1, 1, 1, 0, 0, 1, 0, 0, 0], "001111110"),
        ({"above": 10, "back": 0}, [11, 11, 11, 1, 1, 1, 0, 0, 0], "001111110"),
        ({"below": 1, "back": 1}, [0, 0, 0, 1, 1, 1], "001110"),
    ],
)
def test_it_takes_time_to_come_and_to_go(
    switch: dict[str, float], values: list[float], on: str
) -> None:
    given: dict[str, Any] = {"lasting": 2.0, **switch}
    found = states(Switch(policy="qs", metric="queue_size", **given), values)
    assert "".join(str(int(state)) for state in found) == on


QUICK = Settings(period=0.02, calm_period=0, cpu_limit=0, poll_timeout=1, discover=0.1, window=0.1)


def settings(*switches: Switch, policy: str = "hr") -> Settings:
    return msgspec.structs.replace(QUICK, policy=(Section(policy=policy, switch=switches),))


@pytest.mark.parametrize(
    "switch",
    [
        Switch(policy="radnom", metric="queue_size", above=1),
        Switch(policy="qs", metric="queue", above=1),
        Switch(policy="qs", metric="queue_size"),
        Switch(policy="qs", metric="queue_size", above=1, below=2),
        Switch(policy="qs", metric="queue_size", above=1, back=2),
        Switch(policy="qs", metric="queue_size", below=1, back=0.5),
    ],
)
def test_what_cannot_work_is_an_error_at_once(switch: Switch) -> None:
    with pytest.raises(SettingError) as caught:
        check_sections(settings(switch))
    assert caught.value.where[:2] == ("policy", "hr")


def test_a_metric_that_no_engine_has_is_an_error_before_anything_is_applied() -> None:
    backend = FakeBackend()
    engine = FakeEngine(provides=frozenset({"queue_size"}))
    switch = Switch(policy="qs", metric="latency", above=1)
    controller = Controller(
        settings(switch, policy="qs"), FakeEngine.kind(engine), backends(backend)
    )
    with pytest.raises(MissingMetric, match="latency"):
        asyncio.run(controller.start())
    controller.close()
    assert not backend.tried


def test_the_policy_takes_over_and_goes_back() -> None:
    engine, backend = FakeEngine(), FakeBackend()
    engine.queue = np.zeros(3)
    switch = Switch(policy="qs", metric="queue_size", above=100, back=50, lasting=0.1)
    controller = Controller(settings(switch), FakeEngine.kind(engine), backends(backend))

    async def until_policy(name: str) -> None:
        async with asyncio.timeout(30):
            while not backend.schedules or backend.schedules[-1].policy != name:
                await asyncio.sleep(0.005)

    async def script() -> None:
        await controller.start()
        loop = asyncio.create_task(controller.run())
        await until_policy("hr")
        engine.queue = np.array([0.0, 150.0, NAN])
        await until_policy("qs")
        [rule] = views.status(controller)["policies"]
        assert rule["policy"] == "qs"
        assert rule["chosen"] == "max of queue_size was above 100 for 0.1 s"
        at = len(backend.schedules)
        engine.queue = np.array([0.0, 60.0, NAN])  # between the two thresholds
        async with asyncio.timeout(30):
            while len(backend.schedules) < at + 10:
                await asyncio.sleep(0.005)
        assert {s.policy for s in backend.schedules[at:]} == {"qs"}
        engine.queue = np.zeros(3)
        await until_policy("hr")
        engine.queue = np.full(3, 150.0)
        await until_policy("qs")
        controller.set_policy(controller.rules[0], "random", {})  # the user's word counts
        await until_policy("random")
        assert controller.rules[0].section.switch == ()
        controller.stop("done")
        await loop

    try:
        asyncio.run(script())
    finally:
        controller.close()


def test_a_file_with_switches_is_written_as_it_was_read(tmp_path: Path) -> None:
    path = tmp_path / "sched-ctl.toml"
    path.write_text(
        '[[policy]]\npolicy = "hr"\n[[policy.switch]]\npolicy = "chain"\nmetric = "pressure"\n'
        'above = 0.5\n[[policy.switch]]\npolicy = "random"\noptions = {seed = 3}\n'
        'metric = "head_age"\nbelow = 1\nback = 2\nof = "mean"\n'
    )
    read = load(path)
    assert [switch.policy for switch in read.policy[0].switch] == ["chain", "random"]
    path.write_text(dump(read))
    assert load(path) == read
