"""Pauses of a real JVM, against what it logs of them; and files that only look like a JVM's."""

import random
import re
import shutil
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from plans import plan
from sched_ctl.kernel.hsperf import Pauses
from sched_ctl.model.topology import Thread
from sched_ctl.probes.collector import CollectorPauses
from support import running, wait_until

pytestmark = [pytest.mark.host, pytest.mark.needs("root")]

JAVA = """
import java.util.*;
public class Garbage {
    public static void main(String[] args) throws Exception {
        List<byte[]> kept = new LinkedList<>();
        for (int i = 0; i < 20_000; i++) {
            kept.add(new byte[20_000]);
            if (kept.size() > 1_000) kept.remove(0);
        }
        kept.clear();
        System.out.println("idle");
        System.in.read();
    }
}
"""
MAPS = """
import mmap, sys
file = open(sys.argv[1], "r+b")
held = mmap.mmap(file.fileno(), 4096)
print("mapped", flush=True)
sys.stdin.read()
"""


@pytest.mark.needs("java")
@pytest.mark.parametrize("collector", ["Parallel", "Serial"])
def test_pauses_are_those_that_the_jvm_logs(tmp_path: Path, collector: str) -> None:
    source, log = tmp_path / "Garbage.java", tmp_path / "gc.log"
    source.write_text(JAVA)
    subprocess.run(["javac", "-d", str(tmp_path), str(source)], check=True)
    options = ("-Xmx48m", f"-XX:+Use{collector}GC", f"-Xlog:gc:file={log}", "-cp", str(tmp_path))
    with running(str(shutil.which("java")), *options, "Garbage") as child:

        def logged_s() -> float:
            return sum(map(float, re.findall(r"Pause.* ([0-9.]+)ms", log.read_text()))) * 1e-3

        pauses = Pauses.of(child.pid)
        assert pauses is not None
        assert logged_s() > 0
        wait_until(lambda: abs(pauses.read_s() - logged_s()) < 0.05 * logged_s() + 0.001)
        topology = plan({"q": ["a", "b"]})
        here = replace(topology.operators[0], threads=(Thread(child.pid, child.pid, 1, "a"),))
        topology = replace(topology, operators=(here, topology.operators[1]))
        probe = CollectorPauses()
        known, unknown = probe.read(topology)["gc_time"]
        assert known == pytest.approx(pauses.read_s()) and np.isnan(unknown)
        probe.close()
        pauses.close()


def test_what_only_looks_like_a_jvm_is_read_without_harm(tmp_path: Path) -> None:
    path = tmp_path / "hsperfdata_nobody"
    chance = random.Random(7)
    head = b"\xca\xfe\xc0\xc0" + struct.pack("=BBBBIIqII", 1, 2, 0, 1, 4096, 0, 0, 32, 3)
    path.write_bytes(head + bytes(4096 - len(head)))
    with running(sys.executable, "-c", MAPS, str(path)) as child:
        opened = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(500):
            numbers = [chance.choice((0, 8, 20, 32, 4088, 2**32 - 1)) for _ in range(4)]
            entry = struct.pack("=IIIcBBBI", *numbers[:3], b"J", 0, 0, 0, numbers[3])
            data = head + entry * 3 + b"sun.gc.collector.0.time\0sun.os.hrt.frequency\0"
            with path.open("r+b") as file:
                file.truncate(0)
                file.write((data + chance.randbytes(2000))[: chance.choice((3, 31, 40, 4096))])
            assert Pauses.of(child.pid) is None
        assert len(list(Path("/proc/self/fd").iterdir())) == opened
    assert Pauses.of(child.pid) is None
