"""/proc holds names of anybody's choice: bytes, cut anywhere, with line ends of every kind."""

import ast
import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sched_ctl.kernel import cgroup, hotspot, procfs
from sched_ctl.kernel.cgroup import Hierarchy, hierarchies

ROOT = Path(__file__).parents[2]
PR_SET_NAME = 15
NAMES = (
    "Größenschätzung über",
    "窗口聚合算子测试",
    "a\rUid: 0 0 0 0",
    "a\x0bUid: 0",
    "a\u2028NSpid: 1",
)


@contextmanager
def named(name: bytes) -> Iterator[int]:
    """A thread of ours with this name; its id."""
    ready, done, tids = threading.Event(), threading.Event(), []

    def run() -> None:
        ctypes.CDLL(None).prctl(PR_SET_NAME, name)
        tids.append(threading.get_native_id())
        ready.set()
        done.wait()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    try:
        yield tids[0]
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("name", NAMES)
def test_a_name_may_be_cut_at_every_byte(name: str) -> None:
    """The kernel keeps 15 bytes, whatever letters they cut."""
    content = name.encode()
    for cut in range(1, min(len(content), 15) + 1):
        with named(content[:cut]) as tid:
            status = f"/proc/{os.getpid()}/task/{tid}/status"
            assert procfs.field(status, "Pid") == [str(tid)]
            assert procfs.field(status, "Uid")[0] == str(os.getuid())
            assert procfs.process_of(tid) == os.getpid()
            found = procfs.stat(os.getpid(), tid)
            assert found is not None and found.tid == tid
            inner = procfs.field(status, "NSpid")[-1]
            assert hotspot.host_tids(os.getpid())[int(inner)] == tid
            for hierarchy in hierarchies():
                hierarchy.folder_of(os.getpid(), tid)


@pytest.mark.needs("root")
@pytest.mark.parametrize("name", [b"\rUid: 0 0 0 0", b"\x0bUid:\t0\t0", b"\x85Uid: 0 0"])
def test_nobody_becomes_root_by_a_name(name: bytes) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.setresuid(20001, 20001, 20001)
        ctypes.CDLL(None).prctl(PR_SET_NAME, name)
        os.read(reader, 1)
        os._exit(0)
    try:
        os.close(reader)
        while (found := procfs.stat(child)) and not found.name.endswith(name[-4:].decode()):
            pass
        assert procfs.owner(child) == procfs.effective_uid(child) == 20001
    finally:
        os.close(writer)
        os.waitpid(child, 0)


def _text_of_proc(tree: ast.AST) -> Iterator[int]:
    """Lines of calls that read a file below /proc as text, or end lines where names may."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        written = ast.unparse(node)
        modes = [
            a.value
            for a in (*node.args[1:], *(k.value for k in node.keywords))
            if isinstance(a, ast.Constant) and isinstance(a.value, str)
        ]
        as_text = called in ("read_text", "open") and not any("b" in mode for mode in modes)
        if "/proc" in written and (
            (as_text and not written.startswith("os.open")) or called == "splitlines"
        ):
            yield node.lineno


@pytest.mark.parametrize("folder", ["ctl", "drivers"])
def test_no_file_of_proc_is_opened_as_text(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in _text_of_proc(ast.parse(path.read_text()))
    ]
    assert not found, f"use kernel.procfs.text() or lines(): {found}"


@pytest.mark.parametrize(
    "line",
    [
        'Path(f"/proc/{pid}/status").read_text()',
        'open("/proc/locks")',
        'Path("/proc/stat").open("r")',
        '(_read(f"/proc/{pid}/status") or b"").splitlines()',
    ],
)
def test_what_opens_it_as_text_is_found(line: str) -> None:
    assert list(_text_of_proc(ast.parse(line)))


def test_of_a_command_line_what_is_no_text_ends_with_its_word() -> None:
    words = [b"cut \xe2\x82", b"\x82\xac", b"", "€".encode(), b"\xff"]
    command = *map(os.fsencode, (sys.executable, "-S", "-c", "input(print(1, flush=True))")), *words
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"1\n"
        said = procfs.command_line(process.pid)
        process.kill()
    assert said[4:] == [word.decode(errors="replace") for word in words]


def test_of_a_command_line_without_end_the_beginning_is_looked_at() -> None:
    """Two megabytes of words, in each of some hundred processes, took the search seconds."""
    words = ["x" * 60] * 25_000
    command = [sys.executable, "-S", "-c", "input(print(1, flush=True))", *words]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"1\n"
        assert procfs.command_line(process.pid) == command[: procfs.COMMAND_WORDS]
        process.kill()


def test_processes_may_be_nested_as_deep_as_somebody_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    parents = {pid: pid - 1 for pid in range(1, 5000)} | {7000: 10, 8000: 8001, 8001: 8000}
    monkeypatch.setattr(procfs, "pids", lambda: list(parents))
    monkeypatch.setattr(
        procfs, "stat", lambda pid: procfs.Stat(pid, "x", "S", parents[pid], 0, 1, 0)
    )
    assert procfs.descendants(10) == [*range(11, 5000), 7000]
    assert procfs.descendants(4999) == procfs.descendants(9999) == []
    # Read one after the other, while an id was used again
    assert procfs.descendants(8000) == [8001]


MOUNTS = (
    b"21 1 0:20 / / rw,relatime shared:1 - ext4 /dev/vda rw",
    b"30 21 0:26 / /mnt/nowhere rw - tmpfs  rw,size=4k",
    b"31 21 0:27 / /home/a\xff\\040b\\ rw - fuse.sshfs \xff: rw",
    b"32 21 0:28 / /sys/fs/\xc3\xa4\\040\\134 rw shared:4 master:2 - cgroup2  rw,nsdelegate",
    b"33 21 0:29 /a\xff /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct",
    b"34 21 0:30 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids",
    b"35 21 0:31 - cgroup2 none rw",
    b"a line of a later kernel",
    b"",
)


def test_mounts_of_others_may_have_any_name_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [line.decode("utf-8", "surrogateescape") for line in MOUNTS]
    monkeypatch.setattr(procfs, "lines", lambda path: told)
    assert cgroup.hierarchies.__wrapped__() == (
        Hierarchy(2, Path("/sys/fs/ä \\")),
        Hierarchy(1, Path("/sys/fs/cgroup/cpu"), "/a\udcff"),
    )


def test_memory_of_our_own_process_is_read_and_that_of_nobody_gone() -> None:
    text = ctypes.create_string_buffer(b"what lies there")
    assert procfs.memory(os.getpid(), ctypes.addressof(text), 4) == b"what"
    assert procfs.memory(os.getpid(), 0, 4) is None
    assert procfs.memory(os.getpid(), 1 << 64, 4) is None
    assert procfs.memory(2**22 + 1, ctypes.addressof(text), 4) is None


@pytest.mark.parametrize(
    ("uids", "read"),
    [
        (["0", "0", "0", "0"], True),
        (["1000", "1000", "1000", "1000"], True),
        (["1001", "1001", "1001", "1001"], False),
        (["1001", "0", "0", "0"], False),  # a program with the set-user-id bit
        ([], False),
    ],
)
def test_memory_is_read_of_roots_and_our_own_processes_alone(
    monkeypatch: pytest.MonkeyPatch, uids: list[str], read: bool
) -> None:
    """A page of it may be in a file system of its user's, who never answers."""
    text = ctypes.create_string_buffer(b"what lies there")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(procfs, "field", lambda path, key: uids)
    assert (procfs.memory(os.getpid(), ctypes.addressof(text), 4) is not None) == read
