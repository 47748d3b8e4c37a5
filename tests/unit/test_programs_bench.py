"""The benchmark of programs: what it declares is declared well, and means the threads it counts."""

import re
import tomllib

import msgspec
import pytest

from bench.guest.programs_scenarios import SCENARIOS
from sched_ctl.model.programs import OPERATOR, Program, faults

GSTREAMER = ("gst-launch-1.0", "gmain", "camera:src", "detect:src")
FFMPEG = ("ffmpeg", "dmx0:matroska,w", "dec0:0:mpeg4", "vf#0:0", "enc0:0:rawvideo", "mux0:framecrc")
# As the programs had them in a guest.
THREADS = {
    "camera": GSTREAMER,
    "archive": GSTREAMER,
    "detection": FFMPEG,
    "recording": FFMPEG,
    "packets": ("Suricata-Main", "W#01-lo", "FM#01", "FR#01", "CW", "CS"),
    "rsyslog": ("rsyslogd", "imudp(w0)", "rs:main Q:Reg", "rs:light queue:", "rs:slow queue:R"),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_is_declared_means_the_threads_that_are_counted(name: str) -> None:
    scenario = SCENARIOS[name]
    told = msgspec.convert(tomllib.loads(scenario.programs)["program"], list[Program])
    assert not list(faults(told))
    assert {program.name for program in told} == scenario.operators.keys()
    for program in told:
        for thread in THREADS[program.name]:
            match = program.match(thread)
            assert match is not None, thread
            is_one = re.fullmatch(scenario.operators[program.name], thread) is not None
            assert (match.role == OPERATOR) is is_one, thread
            assert not (is_one and match.others), thread
