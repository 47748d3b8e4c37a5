"""Names at addresses, locks in thread dumps, and what is drawn of stacks."""

import ctypes
import mmap
import os
import random
import struct
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sched_ctl.cli import flame
from sched_ctl.cli import stacks as stacks_shown
from sched_ctl.cli.stacks import in_words
from sched_ctl.kernel import hotspot, procfs, sleeping, symbols
from sched_ctl.kernel.stacks import Sleeps
from sched_ctl.kernel.symbols import Room
from sched_ctl.probes import holders, stacks
from sched_ctl.probes.holders import Held
from sched_ctl.probes.stacks import Place, Waker

DUMP = """2026-01-01 00:00:00
Full thread dump OpenJDK 64-Bit Server VM (17.0.15+6 mixed mode):

"wants \\"it\\"" #12 prio=5 os_prio=0 cpu=1.0ms elapsed=2s tid=0x00007f00 nid=0x10 waiting for \
monitor entry  [0x00007f]
   java.lang.Thread.State: BLOCKED (on object monitor)
\tat app//a.b.Work.take(Work.java:7)
\t- waiting to lock <0x00000000aa> (a java.lang.Object)
\tat java.lang.Thread.run(java.base@17.0.15/Thread.java:840)

"has" #13 prio=5 os_prio=0 cpu=1.0ms elapsed=2s tid=0x00007f01 nid=17 waiting on condition  [0x7f]
   java.lang.Thread.State: TIMED_WAITING (sleeping)
\tat java.lang.Thread.sleep(java.base@17.0.15/Native Method)
\tat a.b.Work.keep(Work.java:9)
\t- locked <0x00000000aa> (a java.lang.Object)

   Locked ownable synchronizers:
\t- <0x00000000bb> (a java.util.concurrent.locks.ReentrantLock$NonfairSync)

"parks" #14 prio=5 os_prio=0 cpu=1.0ms elapsed=2s tid=0x00007f02 nid=0x12 waiting on condition [0]
\tat jdk.internal.misc.Unsafe.park(java.base@17.0.15/Native Method)
\t- parking to wait for  <0x00000000bb> (a java.util.concurrent.locks.ReentrantLock$NonfairSync)

"waits for a signal" #15 daemon prio=5 os_prio=0 tid=0x00007f03 nid=0x13 in Object.wait() [0x7f]
\tat java.lang.Object.wait(java.base@17.0.15/Native Method)
\t- waiting on <0x00000000cc> (a java.lang.Object)
\t- locked <0x00000000cc> (a java.lang.Object)

"idle" #16 prio=5 os_prio=0 tid=0x00007f04 nid=0x14 waiting on condition [0]
\t- parking to wait for  <0x00000000dd> (a java.util.concurrent.ForkJoinPool)
"""


def test_a_dump_tells_who_holds_monitors_and_locks() -> None:
    found = dict(holders._stacks(DUMP))
    assert [*found] == [16, 17, 18, 19, 20]
    assert found[16].frames == [
        "a.b.Work.take (Work.java:7)",
        "java.lang.Thread.run (Thread.java:840)",
    ]
    held = holders.who_holds(found)
    at = ("java.lang.Thread.sleep (Native Method)", "a.b.Work.keep (Work.java:9)")
    reentrant = "java.util.concurrent.locks.ReentrantLock$NonfairSync"
    assert held == {16: Held("java.lang.Object", 17, "has", at), 18: Held(reentrant, 17, "has", at)}


@pytest.mark.parametrize(
    ("line", "frames"),
    [
        ("a.b.C.d(E.java:1)", ["a.b.C.d (E.java:1)"]),
        ("q.Thread.run(java.base@17.0.15/Thread.java:840)", ["q.Thread.run (Thread.java:840)"]),
        ("app//a.b.C.<init>(Unknown Source)", ["a.b.C.<init> (Unknown Source)"]),
        ("app/m@1.0/a.C$$Lambda/0x7f.apply(E.java)", ["0x7f.apply (E.java)"]),
        ("a.b.C.d(E.java:1", []),
        ("/" * 60, []),
        ("/" * 60 + "(" * 1000, []),
        ("a/" * 60 + "b(" + "/" * 60, []),
        ("a" * 5000 + ".b(E.java:1)", []),
    ],
)
def test_a_frame_of_any_name_is_looked_at_once(line: str, frames: list[str]) -> None:
    """Sixty slashes once took days."""
    head = '"t" #1 prio=5 os_prio=0 tid=0x00007f00 nid=0x10 runnable\n\tat '
    [(_, stack)] = holders._stacks(head + line)
    assert stack.frames == frames


@pytest.mark.parametrize("seed", range(20))
def test_a_dump_that_lies_costs_nothing_but_itself(seed: int) -> None:
    draw = random.Random(seed)
    lines = DUMP.splitlines()
    torn = [
        draw.choice(lines)[: draw.randrange(120)] + "\t<0x" * draw.randrange(3) for _ in range(400)
    ]
    found = dict(holders._stacks("\n".join(torn)))
    for stack in found.values():
        assert len(stack.frames) <= holders.FRAMES and len(stack.has) <= holders.LOCKS
    holders.who_holds(found)


def test_the_holder_of_a_mutex_is_read_of_a_process_that_may_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutex = (ctypes.c_int32 * 3)(2, 0, threading.get_native_id())
    monkeypatch.setattr(sleeping, "futex_of", lambda pid, tid: ctypes.addressof(mutex))
    held = holders.mutex(os.getpid(), 1)
    assert held is not None and held.holder == threading.get_native_id()
    assert holders.mutex(os.getpid(), held.holder) is None
    monkeypatch.setattr(procfs, "memory", lambda pid, address, size: None)
    assert holders.mutex(os.getpid(), 1) is None


def test_a_java_machine_is_stopped_once_for_all_of_its_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dumped = []

    def java_stacks(pid: int) -> dict[int, holders.JavaStack]:
        dumped.append(pid)
        waiting = {tid: holders.JavaStack(f"t{tid}", waits="0x1", lock="L") for tid in (1, 2, 3)}
        return waiting | {4: holders.JavaStack("has", ["a.B.c (B.java:5)"], has={"0x1"})}

    monkeypatch.setattr(hotspot, "is_hotspot", lambda _: True)
    monkeypatch.setattr(holders, "java_stacks", java_stacks)
    found = stacks_shown.holders((7, tid) for tid in (1, 2, 4))
    assert dumped == [7] and found.keys() == {1, 2}
    assert stacks_shown.held_in_words(found[1]) == "L, held by has (4) < B.c:5"


def test_functions_of_our_own_process_have_their_names() -> None:
    name = symbols.of_process(os.getpid(), Room())
    libc = ctypes.CDLL(None)
    for function in ("getpid", "qsort"):
        address = ctypes.cast(getattr(libc, function), ctypes.c_void_p).value
        assert address is not None and name(address + 1) in (function, f"__{function}")
    assert name(1) == "0x1"


@pytest.mark.parametrize("seed", range(50))
def test_a_file_that_is_no_elf_is_refused_or_has_no_names(seed: int) -> None:
    draw = random.Random(seed)
    data = bytearray(draw.randbytes(4096))
    data[:6] = b"\x7fELF\x02\x01"
    data[54:62] = struct.pack("<4H", 56, draw.randrange(40), 64, draw.randrange(40))
    data[32:48] = struct.pack("<QQ", draw.randrange(5000), draw.randrange(5000))
    try:
        at = symbols._of_elf(reader(data), Room())
    except (ValueError, struct.error, IndexError, OverflowError):
        return
    at(draw.randrange(1 << 40))


def reader(data: bytes | bytearray) -> Callable[[int, int], bytes]:
    return lambda at, size: bytes(data[at : at + size])


def elf(kinds: list[int], symbols: int) -> bytes:
    """A file with a table of names, and tables of these kinds that are all the same bytes."""
    names, many = b"\0one\0", 1 + len(kinds)
    at = 64 + 56 + 64 * many
    table = at + len(names), 24 * symbols
    head = b"\x7fELF\x02\x01".ljust(32, b"\0") + struct.pack("<QQ", 64, 64 + 56)
    head = head.ljust(54, b"\0") + struct.pack("<4H", 56, 1, 64, many)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x1000, 0, 1 << 30, 0, 0)
    sections = [(3, at, len(names)), *((kind, *table) for kind in kinds)]
    told = [struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, o, n, 0, 0, 0, 0) for kind, o, n in sections]
    rows = [struct.pack("<IBBHQQ", 1, 2, 0, 1, 0x2000 + 16 * i, 8) for i in range(symbols)]
    return b"".join([head.ljust(64, b"\0"), load, *told, names, *rows])


def test_a_file_that_shrinks_while_it_is_read_has_no_names(
    tmp_path: Path,
) -> None:
    """A page of a mapped file that is gone is SIGBUS."""
    path = tmp_path / "lib.so"
    path.write_bytes(elf([2], 1000))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, 5):
        [mapping] = [one for one in symbols._mappings(os.getpid()) if one.file == path.name]
        at = symbols._of_file(os.getpid(), mapping, Room())
        assert at(0x1000) == "one"
        os.truncate(path, 0)
        assert at(0x1000) == "one"
        assert symbols._of_file(os.getpid(), mapping, Room())(0x1000) is None


def test_of_many_tables_of_symbols_one_of_each_kind_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A small file once took all memory: each of its sections was the same table."""
    data = elf([2, 11] * 200, 1000)
    tracemalloc.start()
    try:
        at = symbols._of_elf(reader(data), Room())
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    # The file's offsets are 0x1000 below its addresses.
    assert [at(place) for place in (0xFFF, 0x1000, 0x1007, 0x1008)] == [None, "one", "one", None]
    assert at(0x1000 + 16 * 999) == "one" and at(0x1000 + 16 * 1000) is None
    monkeypatch.setattr(symbols, "MOST_SYMBOLS", 10)
    at = symbols._of_elf(reader(data), Room())
    assert at(0x1000) == "one" and at(0x1000 + 16 * 10) is None


def test_names_are_kept_within_bounds_however_many_files_are_mapped() -> None:
    """A small file tells of names of any size, in a hole."""
    asked: list[int] = []

    def read(data: bytes) -> Callable[[int, int], bytes]:
        def part(at: int, size: int) -> bytes:
            asked.append(size)
            return data[at : at + size].ljust(size if size > 4096 else 0, b"\0")

        return part

    room = Room()
    assert symbols._of_elf(read(vast(0)), room)(0x1000) is None
    assert max(asked) < 4096 and room == Room()
    asked.clear()
    fit = symbols.KEPT_LIMIT // symbols.NAMES_LIMIT - 1  # beside the symbols
    for _ in range(fit):
        assert symbols._of_elf(read(vast(1)), room)(0x1000) == "one"
    left = room.left
    with pytest.raises(ValueError):
        symbols._of_elf(read(vast(1)), room)
    many = [size for size in asked if size > 4096]
    assert len(many) == fit + 1 and many[-1] <= left < symbols.NAMES_LIMIT
    assert symbols._of_elf(reader(elf([2], 1)), room)(0x1000) == "one"


def vast(symbols: int) -> bytes:
    """A file that claims to have 1 TiB of names."""
    data = bytearray(elf([2], symbols))
    struct.pack_into("<Q", data, 64 + 56 + 32, 1 << 40)
    return bytes(data)


def test_names_that_a_file_only_claims_to_have_take_no_room() -> None:
    room, data = Room(), vast(1)
    for _ in range(100):
        assert symbols._of_elf(reader(data), room)(0x1000) == "one"
    assert room.left >= symbols.KEPT_LIMIT - 100 * len(data)


def test_each_owner_has_room_of_his_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root has, and whose processes are looked at; all others who woke them share one."""
    owners = {1: 0, 2: 1000, 3: 1001, 4: 2000, 5: 2001, 6: 1000, 7: None}
    rooms: dict[int, Room] = {}

    def of_process(pid: int, room: Room) -> Callable[[int], str]:
        rooms[pid] = room
        return hex

    monkeypatch.setattr(procfs, "process_of", lambda tid: tid)
    monkeypatch.setattr(procfs, "owner", owners.get)
    monkeypatch.setattr(symbols, "of_process", of_process)
    sleeps = [Sleeps(2, 1, 0.1, (), (1,), waker, (), (1,)) for waker in owners]
    stacks._named(sleeps, {}, stacks._Seen(), [2, 3])
    shared = [[pid for pid in owners if rooms[pid] is rooms[other]] for other in owners]
    assert shared == [[1], [2, 6], [3], [4, 5, 7], [4, 5, 7], [2, 6], [4, 5, 7]]


def test_names_of_c_plus_plus_are_readable() -> None:
    assert symbols.readable("_ZN3spe3Run4loopEv") == "spe::Run::loop"
    assert symbols.readable("_ZNK3foo3barEi") == "foo::bar"
    assert symbols.readable("_Z4workPv") == "work"
    assert symbols.readable("qsort") == "qsort"


PLACE = Place(
    tid=7,
    name="join; a",
    seconds=0.25,
    times=3,
    kernel=("futex_wait", "sys_futex"),
    user=("f", "main"),
    java=(),
    wakers=(Waker(8, "b", 3, ("g",)),),
    held=Held("a mutex", 8, "b"),
    share=0.5,
)


def test_words_name_the_lock_first_and_fit_a_screen() -> None:
    idle = Place(9, "idle", 9.0, 1, ("do_nanosleep",) * 20, ("x" * 30,) * 9, (), (), None, 0.0)
    lines = list(in_words([idle, PLACE]))
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert text.index("join") < text.index("idle")
    assert "waits for a mutex, 50% of the looks" in text and "held by   b (8)" in text
    assert list(in_words([])) == ["no thread of it went to sleep"]


def test_a_flame_graph_is_drawn_to_scale() -> None:
    sums = stacks.folded([PLACE, PLACE])
    assert sums == {("join; a", "main", "f", "sys_futex", "futex_wait"): 500_000}
    drawn = flame.svg({**sums, ("<b>", "main"): 500_000}, "asleep", "us")
    root = ElementTree.fromstring(drawn)
    space = "{http://www.w3.org/2000/svg}"
    boxes = {g[0].text: float(g[1].attrib["width"]) for g in root.iter(f"{space}g")}
    assert boxes["asleep: 1000000 us, 100.0%"] == flame.WIDTH
    assert boxes["<b>: 500000 us, 50.0%"] == flame.WIDTH / 2
