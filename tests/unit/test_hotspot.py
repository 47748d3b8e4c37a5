"""The attach client, without a Java machine: what it reads, and whom it leaves alone."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sched_ctl.kernel import hotspot

# Header lines as JDK 8, 17 and 21 print them.
DUMPS = [
    (
        '"main" #1 prio=5 os_prio=0 tid=0x00007f1 nid=0x1b03 waiting on condition [0x0]\n'
        "   java.lang.Thread.State: RUNNABLE\n"
        '"VM Thread" os_prio=0 tid=0x00007f2 nid=0x1b0a runnable \n',
        [("main", 0x1B03), ("VM Thread", 0x1B0A)],
    ),
    (
        '"q (1/1)#0" #83 prio=5 os_prio=0 cpu=915.68ms elapsed=36.93s tid=0x00007f0a nid=0x4e38 '
        "waiting on condition  [0x00007f0a]\n"
        '\tat x.y("a" tid=0x1 nid=0x2 z)\n'
        '"GC Thread#0" os_prio=0 cpu=3.11ms elapsed=51.19s tid=0x00007f nid=0x4d3a runnable  \n',
        [("q (1/1)#0", 0x4E38), ("GC Thread#0", 0x4D3A)],
    ),
    (
        '"say "hi" tid=0x1" #12 [4711] daemon prio=5 os_prio=0 cpu=1ms elapsed=2s tid=0x00007f '
        "nid=4711 runnable  [0x0]\n",
        [('say "hi" tid=0x1', 4711)],
    ),
    ('"x" #1 tid=0x1 nid=08 runnable \n', [("x", 8)]),
    ("", []),
]


@pytest.mark.parametrize(("text", "threads"), DUMPS)
def test_parse(text: str, threads: list[tuple[str, int]]) -> None:
    assert hotspot.parse_dump(text) == threads


@pytest.mark.parametrize("handler", ["SIG_DFL", "lambda *_: None"])
def test_a_process_that_is_no_java_machine_is_not_signalled(handler: str) -> None:
    program = f"import signal; signal.signal(3, {handler} if 1 else 0); print(flush=True); input()"
    program = program.replace("SIG_DFL", "signal.SIG_DFL")
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(hotspot.AttachError, match="is not a HotSpot"):
            hotspot.threads(process.pid, 1)
        process.communicate(b"\n", timeout=10)
    assert process.returncode == 0
    assert process.returncode != -signal.SIGQUIT


def test_gone() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    with pytest.raises(hotspot.AttachError, match="cannot be attached to"):
        hotspot.threads(process.pid)


@pytest.mark.needs("root")
def test_ids_are_changed_for_one_thread_only_and_come_back() -> None:
    def effective(tid: int) -> str:
        lines = Path(f"/proc/self/task/{tid}/status").read_text().splitlines()
        return next(line.split()[2] for line in lines if line.startswith("Uid:"))

    status = hotspot._Status(1, 1, 1, same_namespace=True, catches_sigquit=True)
    end = threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    assert other.native_id is not None
    with hotspot._as_user(status):
        assert effective(threading.get_native_id()) == "1"
        assert effective(other.native_id) == "0"
    assert effective(threading.get_native_id()) == "0"
    end.set()
    other.join()


@pytest.mark.parametrize("late", [False, True])
def test_what_a_machine_writes_too_late_does_not_stay(
    late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """late: after it was given up."""
    file = tmp_path / f"perf-{os.getpid()}.map"

    @contextmanager
    def folder(_pid: int) -> Iterator[int]:
        found = os.open(tmp_path, os.O_RDONLY)
        yield found
        os.close(found)

    def answer(*_: object) -> str:
        if not late:
            file.write_text("1000 10 a.b.c\n")
        raise hotspot.NotInTime("late")

    monkeypatch.setattr(hotspot, "_tmp_of", folder)
    monkeypatch.setattr(hotspot, "_command", answer)
    monkeypatch.setattr(time, "sleep", lambda _: file.touch())
    with pytest.raises(hotspot.AttachError, match="late"):
        hotspot.methods(os.getpid())
    assert not file.exists()
    file.write_text("was there before")
    with pytest.raises(hotspot.AttachError, match="late"):
        hotspot.methods(os.getpid())
    assert file.exists()


def test_a_perf_map_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"1000 10 a.b.c\n2000 8 d\nno line\n\n" + b"3000 1 e\n" * 9
    assert [m.start for m in hotspot._parse_map(text)] == [0x1000, 0x2000, *[0x3000] * 9]
    monkeypatch.setattr(hotspot, "MOST_METHODS", 3)
    assert hotspot._parse_map(text) == [
        hotspot.Method(0x1000, 0x1010, "a.b.c"),
        hotspot.Method(0x2000, 0x2008, "d"),
    ]
