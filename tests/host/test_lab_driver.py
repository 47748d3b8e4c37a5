"""The lab driver against running engines, and against files that mean harm."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import labengine
import numpy as np
import pytest
from labengine import WORKLOADS

from sched_ctl.adapt import effect
from sched_ctl.drivers import Target
from sched_ctl.drivers.lab import driver as lab
from sched_ctl.drivers.threads import thread_of
from sched_ctl.errors import EngineError
from sched_ctl.kernel import procfs
from sched_ctl.lab import file as lab_file
from sched_ctl.model.topology import UserThread
from sched_ctl.workloads.resolved import resolved_file
from sched_ctl.workloads.workload import load
from support import wait_until

pytestmark = [pytest.mark.host, pytest.mark.needs("cc")]

STEADY = ("--cpus", 1, "--utilisation", 0.3)
NOBODY = 65534


@pytest.fixture(scope="module")
def etl() -> Iterator[Target]:
    with labengine.started(WORKLOADS / "etl.graph", *STEADY) as target:
        yield target


@pytest.fixture
def raw(etl: Target) -> bytes:
    """The content of a good file."""
    return lab_file.path_of(etl.address).read_bytes()


@contextlib.contextmanager
def connected(target: Target) -> Iterator[lab.LabDriver]:
    driver = lab.connect(target)
    try:
        yield driver
    finally:
        driver.close()


def test_finds_the_engine_and_its_topology(etl: Target) -> None:
    assert etl in lab.kind.find()
    (query,) = load(WORKLOADS / "etl.graph").queries
    with connected(etl) as driver:
        topology = driver.poll(1).topology
        assert driver.poll(1).topology is topology
        assert [op.name for op in topology.operators] == [op.name for op in query.operators]
        names = [op.name for op in topology.operators]
        assert {(names[e.source], names[e.target]) for e in topology.edges} == {
            (stream.source, stream.target) for stream in query.streams
        }
        for op in topology.operators:
            (thread,) = op.threads
            assert thread_of(etl.pid or 0, thread.tid) == thread
            assert Path(f"/proc/{etl.pid}/task/{thread.tid}/comm").read_text()[:-1] == op.name[:15]
        assert {helper.role for helper in topology.helpers} == {"main", "source"}
        assert topology.notes == ()


def test_latencies_and_their_histogram_agree(etl: Target) -> None:
    """Buckets are 3% wide, so the histogram's mean is that of the sums but for that."""
    with connected(etl) as driver:
        span = effect.begin(driver.poll(1))

        def enough() -> bool:
            nonlocal span
            span = effect.seen(span, driver.poll(1))
            told = span.now.latencies
            return told is not None and float(told.tuples.sum()) > 200

        wait_until(enough)
        [found] = effect.effects(span)
        first, now = span.first.latencies, span.now.latencies
    assert first is not None and now is not None
    counts = (now.counts - first.counts).sum(axis=0)
    middle_s = np.append((now.low_s[1:] + now.low_s[:-1]) / 2, now.low_s[-1])
    assert found.source == "counted"
    assert found.time_s == pytest.approx((counts * middle_s).sum() / counts.sum(), rel=0.05)
    assert 0 < found.p50_s <= found.p99_s


def test_counters_agree_with_the_kernel_and_with_time(etl: Target) -> None:
    with connected(etl) as driver:
        then = driver.poll(1)

        def enough() -> bool:
            return (
                float(driver.poll(1).columns["tuples_in"][0] - then.columns["tuples_in"][0]) > 200
            )

        wait_until(enough)
        tids = [op.threads[0].tid for op in then.topology.operators]
        before = [_cpu_time_s(etl, tid) for tid in tids]
        now = driver.poll(1)
        after = [_cpu_time_s(etl, tid) for tid in tids]
        told = now.columns["cpu_time"]
        # Published once a millisecond, and a tick (4 ms) may lie between two of the kernel's.
        assert (told <= np.array(after) + 1e-4).all()
        assert (told >= np.array(before) - 0.02).all()
        states = ("idle_time", "busy_time", "backpressured_time")
        spent = sum(now.columns[name] - then.columns[name] for name in states)
        assert spent == pytest.approx(now.time_s - then.time_s, abs=0.02)
        flow = now.columns["tuples_in"] - then.columns["tuples_in"]
        assert flow[2] == pytest.approx(5 * flow[1], rel=0.05)  # SenMlParse: 5 tuples out of one


def _cpu_time_s(target: Target, tid: int) -> float:
    text = Path(f"/proc/{target.pid}/task/{tid}/schedstat").read_text()
    return int(text.split()[0]) * 1e-9


def stopped(target: Target) -> bool:
    pid = target.pid or 0
    return all((stat := procfs.stat(pid, tid)) and stat.state == "T" for tid in procfs.tids(pid))


def test_queues_and_ages_of_a_stuck_operator(etl: Target) -> None:
    """With the engine stopped nothing moves but the age of what waits."""
    path = WORKLOADS / "etl.graph"
    with (
        labengine.started(path, "--cpus", 1, "--utilisation", 3) as target,
        connected(target) as driver,
    ):
        wait_until(lambda: driver.poll(1).columns["queue_size"].max() > 100)
        os.kill(target.pid or 0, signal.SIGSTOP)
        try:
            wait_until(lambda: stopped(target))
            first = driver.poll(1)
            wait_until(lambda: time.monotonic() > first.time_s + 0.3)
            second = driver.poll(1)
        finally:
            os.kill(target.pid or 0, signal.SIGCONT)
        waits = first.columns["queue_size"] > 0
        assert waits.any()
        assert (first.columns["queue_size"] == second.columns["queue_size"]).all()
        aged = second.columns["head_age"] - first.columns["head_age"]
        assert aged[waits] == pytest.approx(second.time_s - first.time_s)
        assert (second.columns["head_age"][~waits] == 0).all()


def test_backpressure_is_seen() -> None:
    options = ("--cpus", 1, "--utilisation", 3, "--bounded", 4)
    with (
        labengine.started(WORKLOADS / "etl.graph", *options) as target,
        connected(target) as driver,
    ):
        names = [op.name for op in driver.poll(1).topology.operators]

        def consumed() -> int:
            return int(driver.file.numbers("consumed", "tuples").sum())

        def blocked() -> bool:
            before = consumed()
            snapshot = driver.poll(1)
            time_s = snapshot.columns["backpressured_time"]
            # Annotation feeds the heavy AzureInsert, whose queue holds 4, and makes room again
            # while it is looked at.
            size = snapshot.columns["queue_size"][names.index("AzureInsert")]
            assert size <= 4 + consumed() - before
            return bool(time_s[names.index("Annotation")] > 0.2)

        wait_until(blocked)


def test_an_engine_that_dies_is_an_engine_error() -> None:
    with labengine.started(WORKLOADS / "etl.graph", *STEADY) as target:
        driver = lab.connect(target)
        path = lab_file.path_of(target.address)
        try:
            os.kill(target.pid or 0, signal.SIGKILL)

            def error() -> str:
                try:
                    driver.poll(1)
                except EngineError as error:
                    return error.message
                return ""

            assert "has ended" in wait_until(error)
            assert target not in lab.find()
            with pytest.raises(EngineError, match="gone"):
                lab.connect(target)
        finally:
            driver.close()
            path.unlink()


def test_a_pool_has_user_level_threads() -> None:
    options = (*STEADY, "--threads", "pool:2")
    with (
        labengine.started(WORKLOADS / "etl.graph", *options) as target,
        connected(target) as driver,
    ):
        topology = driver.poll(1).topology
        threads = [op.threads[0] for op in topology.operators]
        rows = [thread.row for thread in threads if isinstance(thread, UserThread)]
        assert rows == list(range(10))
        assert [helper.role for helper in topology.helpers].count("worker") == 2
        assert "idle_time" not in driver.provides
        assert driver.provides == driver.poll(1).columns.keys()


# --- files that mean harm -------------------------------------------------------------------------


def refused(path: Path) -> str:
    """Opening the file raises an EngineError (and nothing else); its text."""
    with pytest.raises(EngineError) as caught:
        lab.connect(Target("lab", str(path)))
    return caught.value.message


@pytest.mark.parametrize("content", [b"", b"x", b"\0" * 10_000, b"LABSPE1\0" * 1000])
def test_garbage_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    refused(tmp_path / "file")


def test_things_that_are_no_files_are_refused(tmp_path: Path, etl: Target) -> None:
    (tmp_path / "folder").mkdir()
    refused(tmp_path / "folder")
    os.mkfifo(tmp_path / "fifo")
    refused(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(lab_file.path_of(etl.address))
    refused(tmp_path / "link")
    refused(tmp_path / "missing")


def test_find_passes_what_is_not_an_engine(tmp_path: Path, raw: bytes, etl: Target) -> None:
    (tmp_path / "labspe.1").write_bytes(b"garbage")
    (tmp_path / "labspe.2").write_bytes(raw)  # names another process than its own name does
    good = tmp_path / f"labspe.{etl.pid}"
    good.write_bytes(raw)
    assert lab_file.pids(lambda: sorted(tmp_path.iterdir())) == [etl.pid]


def test_a_cut_off_file_is_refused(tmp_path: Path, raw: bytes) -> None:
    for length in (40, 100, 1000, len(raw) // 2, len(raw) - 1):
        (tmp_path / "file").write_bytes(raw[:length])
        refused(tmp_path / "file")


def test_another_version_is_named(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "file").write_bytes(raw[:8] + b"\x07" + raw[9:])
    assert "version 7" in refused(tmp_path / "file")


@pytest.mark.parametrize(
    ("limit", "most"),
    [("MAX_BYTES", 4096), ("MAX_LAYOUT_BYTES", 64), ("MAX_POLLED_BYTES", 1000), ("MAX_ROWS", 5)],
)
def test_a_file_beyond_a_limit_is_refused(
    tmp_path: Path, raw: bytes, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    """The file of an honest engine, by limits that it exceeds: it is refused before it is read."""
    (tmp_path / "file").write_bytes(raw)
    with connected(Target("lab", str(tmp_path / "file"))) as driver:
        assert len(driver.poll(1).topology.operators) > 5
    assert getattr(lab_file, limit) > most
    monkeypatch.setattr(lab_file, limit, most)
    assert refused(tmp_path / "file")


@pytest.mark.parametrize("field", ["source", "target"])
def test_an_edge_must_join_operators(tmp_path: Path, raw: bytes, field: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(raw)
    opened = lab_file.LabFile(path)
    try:
        row = opened._dtypes["edges"]
        # The last one: edges are sorted by their targets.
        last = opened["edges_offset"] + (opened["edges_count"] - 1) * row.itemsize
    finally:
        opened.close()
    assert row.fields is not None
    at = last + row.fields[field][1]
    path.write_bytes(raw[:at] + (1000).to_bytes(8, "little") + raw[at + 8 :])
    assert "an edge comes from, or leads to, no operator" in refused(path)


FIELDS = ("pid", "workers", "operators_offset", "edges_count", "state", "tid", "head_due_ns", "in")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("broken", ["missing", "another type", "far away"])
def test_a_layout_that_lacks_a_field_is_refused(
    tmp_path: Path, raw: bytes, field: str, broken: str
) -> None:
    start = raw.index(f'["{field}", "u64"'.encode())
    end = raw.index(b",", raw.index(b",", start) + 1) + 1
    was = raw[start : raw.index(b",", end)]
    becomes = {
        "missing": was.replace(b'["', b'["?', 1).replace(b", ", b",", 1),
        "another type": was.replace(b"u64", b"txt"),
        "far away": was[: was.rindex(b" ")] + b" " + b"9" * (len(was) - was.rindex(b" ") - 1),
    }[broken]
    assert len(becomes) == len(was) and becomes != was
    (tmp_path / "file").write_bytes(raw.replace(was, becomes))
    try:
        with connected(Target("lab", str(tmp_path / "file"))) as driver:
            driver.poll(1)
            assert broken == "far away"  # which may still lie in the row
    except EngineError:
        pass


def test_flipped_bytes_never_do_worse_than_an_engine_error(tmp_path: Path, etl: Target) -> None:
    random = np.random.default_rng(1)
    path = tmp_path / "file"
    interesting = 20_000  # header, layout, operators, edges: histograms do no harm
    refusals = 0
    for _ in range(300):
        content = bytearray(lab_file.path_of(etl.address).read_bytes())
        for at in random.integers(0, min(len(content), interesting), random.integers(1, 20)):
            content[at] = random.integers(256)
        path.write_bytes(content)
        try:
            with connected(Target("lab", str(path))) as driver:
                columns = driver.poll(1).columns
                assert not any(np.isnan(column).any() for column in columns.values())
        except EngineError:
            refusals += 1
    assert 30 < refusals < 300


def test_a_reused_thread_id_is_told(tmp_path: Path, raw: bytes, etl: Target) -> None:
    with connected(etl) as driver:
        real = driver.poll(1).topology.operators[0].threads[0]
    tid = real.tid.to_bytes(8, "little")
    was = real.start_time.to_bytes(8, "little")
    path = tmp_path / "file"
    path.write_bytes(raw.replace(tid + was, tid + (real.start_time + 1).to_bytes(8, "little")))
    with connected(Target("lab", str(path))) as driver:
        topology = driver.poll(1).topology
        assert topology.operators[0].threads == ()
        assert len(topology.notes) == 1


def test_a_thread_of_another_process_is_not_taken(tmp_path: Path, raw: bytes, etl: Target) -> None:
    """A file that names our own threads as its operators' gets none of them."""
    with connected(etl) as driver:
        real = driver.poll(1).topology.operators[0].threads[0]
    mine = thread_of(os.getpid(), os.getpid())
    assert mine is not None
    forged = raw.replace(
        real.tid.to_bytes(8, "little") + real.start_time.to_bytes(8, "little"),
        mine.tid.to_bytes(8, "little") + mine.start_time.to_bytes(8, "little"),
    )
    assert forged != raw
    (tmp_path / "file").write_bytes(forged)
    with connected(Target("lab", str(tmp_path / "file"))) as driver:
        topology = driver.poll(1).topology
        assert topology.operators[0].threads == ()
        assert all(len(op.threads) == 1 for op in topology.operators[1:])
        assert mine not in {helper.thread for helper in topology.helpers}


@pytest.mark.needs("root")
def test_a_file_of_another_user_cannot_name_our_processes(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(raw)
    os.chown(path, NOBODY, NOBODY)
    assert "owns it" in refused(path)


@pytest.mark.needs("root")
def test_another_user_s_engine_is_read_and_cannot_fault_us(tmp_path: Path) -> None:
    """Its owner truncates the file under our hands: an error, not SIGBUS."""
    folder = Path("/dev/shm") / f"sched-ctl-test-{os.getpid()}"
    folder.mkdir(mode=0o755)
    try:
        shutil.copy(labengine.program(), folder / "labspe")
        (folder / "etl").write_bytes(resolved_file(WORKLOADS / "etl.graph"))
        engine = subprocess.Popen(
            [folder / "labspe", *labengine.SAFE, "--duration", "30", folder / "etl"],
            user=NOBODY,
            group=NOBODY,
            extra_groups=(),
            stderr=subprocess.DEVNULL,
        )
        target = Target("lab", str(engine.pid), engine.pid)
        try:
            wait_until(lambda: target in lab.find())
            with connected(target) as driver:
                first = driver.poll(1)
                assert all(len(op.threads) == 1 for op in first.topology.operators)

                def flows() -> bool:
                    now = driver.poll(1)
                    return bool((now.columns["tuples_in"] > first.columns["tuples_in"]).all())

                wait_until(flows)
                os.kill(engine.pid, signal.SIGKILL)
                os.truncate(lab_file.path_of(target.address), 4096)
                with pytest.raises(EngineError, match="cut off"):
                    driver.poll(1)
        finally:
            engine.kill()
            engine.wait()
            lab_file.path_of(target.address).unlink(missing_ok=True)
    finally:
        shutil.rmtree(folder)
