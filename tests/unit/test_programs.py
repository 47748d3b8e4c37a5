"""Programs by declaration: what is refused, what names say, and a real program with such names."""

import math
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
from fakes import Wakes
from typer.testing import CliRunner

from sched_ctl.cli import look, make_app
from sched_ctl.config.dump import dump
from sched_ctl.config.files import load, sections_of
from sched_ctl.config.settings import ConfigError, SettingError, Settings
from sched_ctl.drivers import Target, deadlines, drafts, kernel, program
from sched_ctl.drivers.jvm import JavaProcess
from sched_ctl.drivers.kernel import pattern_of
from sched_ctl.drivers.sources.http import Endpoint
from sched_ctl.engines.roster import wanted_kinds
from sched_ctl.errors import EngineError
from sched_ctl.kernel import procfs, tracing
from sched_ctl.model.programs import (
    COMM_LENGTH,
    JAVA_LENGTH,
    LONGEST,
    MOST_CHOICES,
    MOST_PATTERNS,
    Counters,
    Find,
    Helper,
    Match,
    Program,
    counter,
    fault_of,
    faults,
    shortest,
)
from sched_ctl.model.topology import Thread
from support import running, wait_until

GOOD = r"""
[[program]]
name = "cameras"
find = { comm = "python*", args = "*CAMERAS*" }
[program.threads]
'q_(?P<query>[a-z]+)_(?P<operator>[a-z]+)\d*' = "operator"
'pool-.*' = { role = "housekeeping" }
[program.edges]
capture = ["decode"]
"""

MARK = f"CAMERAS-{os.getpid()}-"  # others may run these tests at the same time
OWN = GOOD.replace("CAMERAS", MARK)

CODE = """
import ctypes, sys, threading, time
libc = ctypes.CDLL(None)
def run(name):
    libc.prctl(15, name.encode(), 0, 0, 0)
    ready.wait()
    if name == "stranger" and sys.stdin.readline(): libc.prctl(15, b"pool-late", 0, 0, 0)
    time.sleep(300)
names = ("q_a_capture", "q_a_decode1", "q_a_decode2", "q_b_decode", "pool-1", "stranger")
ready = threading.Barrier(1 + len(names))
for name in names: threading.Thread(target=run, args=(name,), daemon=True).start()
ready.wait()
print("runs", flush=True)
time.sleep(300)
"""

UUID = "ebd8f9c6-53cb-43f8-9293-b7fdb66addd1"
# As /proc/PID/task/TID/comm had them: GStreamer 1.22.0 and rsyslog 8.2302.0 of Debian 12; GStreamer
# 1.26.2, rsyslog 8.2504.0, FFmpeg 7.1.5, Suricata 7.0.10 of Debian 13. Kafka 4.0.0's by a dump.
RECORDED = {
    "gstreamer": {
        "gst-launch-1.0": None,
        "gmain": None,
        "pool-gst-launch": None,
        "pool-spawner": None,
        "queue0:src": "queue0",
        "detect_light:sr": "detect_light",
        "decode:src": "decode",
        "audiotestsrc0:s": "audiotestsrc0",
        "a-long-element-": "a-long-element-",
    },
    "rsyslog": {
        "rsyslogd": None,
        **dict.fromkeys(("imudp(w0)", "in:imfile", "in:impstats", "w0/imtcp", "imptcp/w1")),
        "rs:main Q:Reg": None,
        **dict.fromkeys(("rs:main Q:DAwrk", "rs:main Q[DA]:R")),  # by its source
        "rs:r:Reg": "r",
        "rs:slow_file qu": "slow_file qu",
        "rs:action-1-bui": "action-1-bui",
    },
    "ffmpeg": {
        "ffmpeg": None,
        "dmx0:lavfi": "dmx0",
        "dec0:0:wrapped_": "dec0:0",
        "dec1:0:pcm_s16l": "dec1:0",
        "vf#0:0": "vf#0:0",
        "af#0:1": "af#0:1",
        "enc0:0:mpeg4": "enc0:0",
        "enc1:0:mpeg2vid": "enc1:0",
        "mux0:matroska": "mux0",
    },
    "suricata": {
        "Suricata-Main": None,
        "W#01-lo": "W",
        "RX#02": "RX",
        "W#02": "W",
        **dict.fromkeys(("FM#01", "FR#01", "CW", "CS", "US")),
        "DL#01": None,  # by its source
    },
    "kafka-connect": {
        "connector-thread-fast-alarms": None,
        "task-thread-fast-alarms-0": "task",
        "kafka-producer-network-thread | connector-producer-fast-alarms-0": None,
        "SourceTaskOffsetCommitter-1": None,
        "FileOffsetBackingStore-1": None,
        "qtp823914581-15": None,
        "pool-2-thread-1": None,
    },
    "kafka-streams": {
        f"alarms-{UUID}-StreamThread-1": "StreamThread",
        f"alarms-{UUID}-StateUpdater-1": None,
        f"alarms-{UUID}-CleanupThread": None,
        f"alarms-{UUID}-GlobalStreamThread": "GlobalStreamThread",
        # With a client.id, of 4.4.0.
        "my-orders-StreamThread-1": "StreamThread",
        "my-orders-StateUpdater-1": None,
        "my-orders-CleanupThread": None,
        f"kafka-producer-network-thread | alarms-{UUID}-StreamThread-1-producer": None,
        f"kafka-admin-client-thread | alarms-{UUID}-admin": None,
        "kafka-coordinator-heartbeat-thread | alarms": None,
    },
    # Not recorded: made by the format in its source, and cut.
    "fluent-bit": {
        "fluent-bit": None,
        "flb-logger": None,
        "flb-in-tail.0-w": None,
        "flb-out-http.0-": "http.0",
        "flb-out-es.1-w0": "es.1",
        "flb-out-stackdr": "stackdr",
    },
}


def written(folder: Path, text: str) -> Path:
    path = folder / "sched-ctl.toml"
    path.write_text(text)
    return path


def declared(text: str = GOOD) -> Program:
    import tomllib

    return msgspec.convert(tomllib.loads(text)["program"][0], Program)


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"(a+)+b", r"(a|a)*b", r"(?:a*)*", r"(a?){15}b", r"((a|a){2})+", r"(?:(a*))+"),
        *(r"a*a*a*a*a*b", r"a?a?a?a?a?", r"(a|b)+?x", r"(\w+)\1", r"(?=a)b", r"(?i)a", "x" * 201),
        *("(", "*", r"(?P<task>a)", r"(?P<operator>a)(?P<operator>b)"),
    ],
)
def test_patterns_that_could_take_for_ever_or_mean_nothing_are_refused(pattern: str) -> None:
    assert fault_of(pattern) is not None


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        (r"queue_(?P<query>\w+)_(?P<operator>\w+)", "queue_a_b"),
        (r"gmain|pool-.*|W#\d{2}", "W#01"),
        (r"a\(b\+", "a(b+"),
        (r"[(*+]+x", "(*+x"),
        (r"(a{2})+", "aaaa"),
        (r"(?:x.*?)?(?:-.*)?", "x-1"),
    ],
)
def test_what_people_write_is_taken(pattern: str, name: str) -> None:
    assert fault_of(pattern) is None and re.fullmatch(pattern, name)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"housekeeping"', '"hosekeeping"', "no role 'hosekeeping'"),
        ('= "operator"', '= "operators"', "'operators' is neither"),
        ("pool-.*", "(a+)+", "inside something repeated"),
        ("pool-.*", "pool-(", "no regular expression"),
        ("pool-.*", "pool-[[a]", "a bracket inside of brackets"),
        ('capture = ["decode"]', 'a = ["b"]\nb = ["a"]', "feeds itself"),
        ('comm = "python*"', 'comm = "gst-launch-1.0-x86"', "cuts names at 15"),
        ('"cameras"', '"a/b"', "program"),
        ('{ comm = "python*", args = "*CAMERAS*" }', "{}", "find: it says nothing"),
        ('{ comm = "python*", args = "*CAMERAS*" }', '{ com = "x" }', "com"),
        ("[program.edges]", "[program.metrics]\nprometheus='x'\n[program.edges]", "no address"),
        (
            "[program.edges]",
            "[program.metrics]\nprometheus='http://[::1]:1/m'\ntuples_in='n{l=\"$x\"}'\n"
            "[program.edges]",
            r"no \$x",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError, match=message) as caught:
        load(written(tmp_path, GOOD.replace(old, new, 1)))
    assert "program" in caught.value.message and "sched-ctl.toml" in caught.value.message
    assert caught.value.hint


METRICS = "[program.metrics]\nprometheus='http://[::1]:1/m'\ntuples_in='n{l=\"$operator\"}'\n"


@pytest.mark.parametrize(
    ("old", "new", "place", "meant"),
    [
        ("name =", "nam =", "nam", "name"),
        ("find =", "fnd =", "fnd", "find"),
        ("{ comm", "{ com", "find.com", "comm"),
        ("program.threads", "program.thread", "thread", "threads"),
        ("role =", "rol =", r"threads.'pool-\.\*'.rol", "role"),
        ('"housekeeping"', '"hosekeeping"', "threads.'pool-", "housekeeping"),
        ('= "operator"', '= "operater"', r"threads.*\.\.\.'", "operator"),
        ("program.edges", "program.edge", "edge", "edges"),
        ('["decode"]', '"decode"', "edges", "FEEDS"),
        ("program.metrics", "program.metric", "metric", "metrics"),
        ("prometheus", "promethus", "metrics.promethus", "prometheus"),
        ("tuples_in", "tuple_in", "metrics.tuple_in", "tuples_in"),
    ],
)
def test_of_a_slip_it_is_said_what_may_be_meant(
    tmp_path: Path, old: str, new: str, place: str, meant: str
) -> None:
    good = GOOD + METRICS
    assert load(written(tmp_path, good)) and old in good
    with pytest.raises(ConfigError, match=rf"program\[0\]\.{place}") as caught:
        load(written(tmp_path, good.replace(old, new, 1)))
    told = f"{caught.value.message} {caught.value.hint}"
    assert re.search(rf"did you mean '?{meant}'?\?|{meant}\"\]", told), told


@pytest.mark.parametrize(
    ("old", "new", "place", "told"),
    [
        (
            "[program.edges]",
            'text.lib = "operator"\n[program.edges]',
            "threads.'text'.lib",
            "quotes",
        ),
        (
            "[program.edges]",
            'text.lib = "operator"\ntext.drm = { role = "io" }\n[program.edges]',
            "threads.'text'.lib",
            "quotes",
        ),
        (
            "[program.edges]",
            "'p' = {}\n[program.edges]",
            "threads.'p': neither",
            "operator.*roles: h",
        ),
        (
            "[program.edges]",
            "'p' = 3\n[program.edges]",
            "threads.'p': neither",
            "operator.*roles: h",
        ),
        ('"housekeeping"', "3", "threads.'pool-.*': neither", "operator.*roles: h"),
        ("[program.threads]", "names='jav'\n[program.threads]", "names", "one of kernel, java"),
        ('comm = "python*"', "comm = 3", "find.comm", "comm: name of its first thread"),
        ('comm = "python*"', "comm = { x = 'y' }", "find.comm", "comm: name of its first thread"),
        ("prometheus=", "prometheus=3#", "metrics.prometheus", "http://HOST:PORT"),
        ("tuples_in=", "tuples_in={}#", "metrics.tuples_in", "FAMILY"),
        ("prometheus=", "#", "metrics", "prometheus = URL"),
    ],
)
def test_of_a_wrong_value_it_is_said_where_it_stands_and_what_may(
    tmp_path: Path, old: str, new: str, place: str, told: str
) -> None:
    good = GOOD + METRICS
    assert load(written(tmp_path, good)) and old in good
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, good.replace(old, new, 1)))
    assert f"program[0].{place}" in caught.value.message
    assert re.search(told, caught.value.hint or ""), caught.value.hint


def test_two_of_one_name_are_refused_and_a_drop_in_replaces(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="this name already"):
        load(written(tmp_path, GOOD + GOOD))
    path = written(tmp_path, GOOD)
    folder = tmp_path / "sched-ctl.d"
    folder.mkdir()
    (folder / "a.toml").write_text(GOOD.replace("CAMERAS", "OTHER"))
    [one] = load(path).program
    assert one.find.args == "*OTHER*"


def test_what_config_prints_reads_back_equal(tmp_path: Path) -> None:
    settings = Settings(program=(declared(),))
    assert load(written(tmp_path, dump(settings))) == settings


def test_shipped_declarations_on_recorded_names() -> None:
    wholes = {name for name, one in program.shipped().items() if not one.threads}
    assert program.shipped().keys() - wholes == RECORDED.keys() and not program.broken()
    for name, threads in RECORDED.items():
        one = program.shipped()[name]
        found = {text: one.match(text) for text in threads}
        assert all(found.values()), found
        told = {
            text: m.operator if m.role == "operator" else None for text, m in found.items() if m
        }
        assert told == threads


def test_of_kafka_a_connector_is_a_query_and_so_is_an_application() -> None:
    for name, text, query in (
        ("kafka-connect", "task-thread-slow-archive-2-0", "slow-archive-2"),
        ("kafka-streams", f"my-app-{UUID}-StreamThread-12", "my-app"),
        ("kafka-streams", "my-orders-StreamThread-1", "my-orders"),
        ("kafka-streams", "what-a-gateway-counts-StreamThread-12", "what-a-gateway-counts"),
        ("kafka-streams", "my-orders-GlobalStreamThread", "my-orders"),
        ("kafka-streams", "us-fraud-checks-StreamThread-1", "us-fraud-checks"),
        ("kafka-streams", "us-fraud-checks-GlobalStreamThread", "us-fraud-checks"),
        ("kafka-streams", "fraud-detection-v1-StreamThread-1", "fraud-detection-v1"),
        ("kafka-streams", "streams-order-enrichment-StreamThread-2", "streams-order-enrichment"),
        ("kafka-streams", f"my-app-{UUID}-GlobalStreamThread", "my-app"),
        ("kafka-streams", "what-a-gateway-counts-GlobalStreamThread", "what-a-gateway-counts"),
    ):
        match = program.shipped()[name].match(text)
        assert match is not None and (match.query, match.others) == (query, ())


def test_a_shipped_file_that_is_broken_disables_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = "[[program]]\nname = 'good'\nfind = { comm = 'x' }\nwhole = true\n"
    (tmp_path / "a.toml").write_text("[[program")
    (tmp_path / "b.toml").write_bytes(b"\xff")
    (tmp_path / "c.toml").write_text(good)
    (tmp_path / "d.toml").write_text(good.replace("'good'", "'bad'").replace("whole", "who"))
    (tmp_path / "e.toml").write_text(good.replace("whole = true", "[program.threads]\n'(' = 'x'"))
    monkeypatch.setattr(program, "FOLDER", tmp_path)
    program._files.cache_clear()
    try:
        assert list(program.shipped()) == ["good"]
        assert [name for name in "abde" if any(f"{name}.toml" in t for t in program.broken())] == [
            *"abde"
        ]
        kind = program.declared([declared()])
        kind.check("cameras")
        kind.check("good")
    finally:
        program._files.cache_clear()


def test_a_process_without_named_threads_is_taken_whole() -> None:
    one = program.shipped()["ffmpeg"]
    named = [Thread(7, 7, 1, "ffmpeg"), Thread(7, 8, 1, "enc0:0:mpeg4"), Thread(7, 9, 1, "dmx0:x")]
    bare = [Thread(5, 5 + i, i, "ffmpeg") for i in range(4)]
    found = program.sorted_threads(one, [*named, *bare])
    assert [operator.label for operator in found.operators] == [
        *("ffmpeg#7/enc0:0", "ffmpeg#7/dmx0", "ffmpeg#5/process")
    ]
    assert found.operators[-1].threads == tuple(bare)
    assert [helper.thread.pid for helper in found.helpers] == [7]
    assert program.WHOLE in found.notes
    assert program.WHOLE not in program.sorted_threads(one, named).notes


def test_a_whole_program_runs_as_one_operator_of_all_its_threads(tmp_path: Path) -> None:
    text = GOOD.replace("[program.threads]", "whole = true\n[program.threads]").replace("q_", "z_")
    text = text.partition("[program.edges]")[0]
    with cameras() as child:
        driver = program.declared([declared(text)]).connect(Target("program", "cameras"))
        try:
            [operator] = driver.poll(1.0).topology.operators
            assert operator.label == "cameras/process"
            assert {t.name for t in operator.threads} >= {"q_a_capture", "pool-1", "stranger"}
            columns = driver.poll(1.0).columns
            assert len(columns["tuples_in"]) == 1 and columns["thread_cpu_time"][0] > 0
            assert isinstance(driver, program.ProgramDriver)
            notes = driver.poll(1.0).topology.notes
            assert notes[0] == program.WHOLE and notes[-1].startswith("nobody tells what it hands")
            assert "its threads are" not in " ".join(notes)
            driver._untraced = ""
            assert driver._made().notes == (program.WHOLE,), "it feeds nobody"
        finally:
            driver.close()
        assert child.poll() is None
        words = ["engines", "--config", str(written(tmp_path, text)), "--explain", str(child.pid)]
        told = CliRunner().invoke(make_app(), [*words, "--json"])
    rows = msgspec.json.decode(told.stdout)["threads"]
    assert {(row["role"], row["operator"]) for row in rows} == {("operator", "process")}


def test_a_draft_has_the_edges_that_were_seen(tmp_path: Path) -> None:
    threads = [Thread(5, 5, 1, "main"), Thread(5, 6, 2, "read 1"), Thread(5, 7, 3, "w")]
    text = drafts.draft(5, threads, {"read #": ("w", "main"), "main": ("w",)})
    [one] = load(written(tmp_path, text)).program
    assert one.edges == {"read #": ("w",)}


def test_names_are_cut_as_the_kernel_cuts_them_and_matched_once() -> None:
    one = declared()
    long = "q_alarms_decodeframes"
    assert len(long) > COMM_LENGTH
    match = one.match(long)
    assert match is not None and match.operator == "decode"
    assert one.match(long[:COMM_LENGTH]) is match


def test_replicas_edges_and_what_matches_nothing() -> None:
    names = (
        "q_a_capture",
        "q_a_decode1",
        "q_a_decode2",
        "q_b_decode",
        "pool-1",
        "x",
        "q_a_capture",
    )
    found = program.sorted_threads(
        declared(), [Thread(9, 10 + i, i, n) for i, n in enumerate(names)]
    )
    labels = [operator.label for operator in found.operators]
    assert labels == ["a/capture.10", "a/decode.11", "a/decode.12", "b/decode", "a/capture.16"]
    assert [(o.replica, o.replicas) for o in found.operators][1:3] == [(0, 2), (1, 2)]
    assert found.edges is not None
    assert {(e.source, e.target, e.share) for e in found.edges} == {
        *((0, 1, 0.5), (0, 2, 0.5), (4, 1, 0.5), (4, 2, 0.5))
    }
    assert [(h.thread.name, h.role) for h in found.helpers] == [("pool-1", "housekeeping")]
    assert any("1 threads match no pattern" in note and "'x'" in note for note in found.notes)


def test_threads_of_two_names_do_not_make_any_number_of_edges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(program, "EDGE_LIMIT", 10)
    names = ["q_a_capture"] * 3 + ["q_a_decode"] * 4 + ["q_b_capture", "q_b_decode"]
    found = program.sorted_threads(
        declared(), [Thread(9, 10 + i, i, n) for i, n in enumerate(names)]
    )
    assert found.edges is not None
    assert [(edge.source, edge.target) for edge in found.edges] == [(7, 8)]
    assert any("more edges than are looked at" in note for note in found.notes)


def test_a_process_that_runs_no_operator_beside_others_that_do_is_another_program() -> None:
    threads = [Thread(9, 10, 1, "q_a_capture"), Thread(8, 8, 1, "pool-1"), Thread(8, 9, 1, "x")]
    found = program.sorted_threads(declared(), threads)
    assert [operator.label for operator in found.operators] == ["a/capture"]
    assert not found.helpers and not any("no pattern" in note for note in found.notes)
    alone = program.sorted_threads(declared(), threads[1:])
    assert [helper.thread.pid for helper in alone.helpers] == [8]


def test_of_two_patterns_the_first_decides_and_it_is_said() -> None:
    one = declared(GOOD.replace("'pool-.*'", "'q_a_.*'"))
    found = program.sorted_threads(one, [Thread(9, 10, 1, "q_a_capture")])
    assert [operator.label for operator in found.operators] == ["a/capture"]
    assert any("the first decides" in note for note in found.notes)


def test_thousands_of_threads_are_told_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    matched = Program._matched

    def counted(self: Program, name: str) -> Match | None:
        asked.append(name)
        return matched(self, name)

    monkeypatch.setattr(Program, "_matched", counted)
    one = declared()
    threads = [Thread(9, 10 + i, i, f"q_a_decode{i % 7}") for i in range(5000)]
    for _ in range(3):
        assert len(program.sorted_threads(one, threads).operators) == 5000
    assert len(asked) == 7


def test_counters_by_operator_and_query(monkeypatch: pytest.MonkeyPatch) -> None:
    assert counter('n_total{a="$operator", b="x,}"}') == ("n_total", {"a": "$operator", "b": "x,}"})
    told = (
        '[program.metrics]\nprometheus = "http://127.0.0.1:9/m"\n'
        'tuples_in = \'in_total{op="$operator",q="$query"}\'\n'
    )
    page = (
        b'in_total{op="decode",q="a",part="1"} 30\nin_total{op="decode",q="a",part="2"} 10\n'
        b'in_total{op="decode",q="z"} 7\nin_total{op="capture",q="a"} NaN\n'
    )
    monkeypatch.setattr(Endpoint, "get", lambda *_: page)
    with cameras() as child:
        one = declared(GOOD.replace("[program.edges]", told + "[program.edges]"))
        driver = program.declared([one]).connect(Target("program", "cameras"))
        try:
            snapshot = driver.poll(1.0)
        finally:
            driver.close()
        assert child.pid in snapshot.topology.pids
    assert "tuples_out" not in driver.provides and "tuples_out" not in snapshot.columns
    names = [operator.label for operator in snapshot.topology.operators]
    values = dict(zip(names, snapshot.columns["tuples_in"].tolist(), strict=True))
    # Two replicas share what the parts of their counter add up to.
    halves = [value for name, value in values.items() if name.startswith("a/decode")]
    assert halves == [20.0, 20.0]
    assert np.isnan(values["b/decode"]) and np.isnan(values["a/capture"])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_nobody_else_tells_what_a_program_counts() -> None:
    """Any user may listen where its page was, as while it begins anew."""
    os.seteuid(20001)
    try:
        server = socket.create_server(("127.0.0.1", 0))
    finally:
        os.seteuid(0)
    page = f"[program.metrics]\nprometheus = 'http://127.0.0.1:{server.getsockname()[1]}/m'\n"
    page += "tuples_in = 'in_total{op=\"$operator\"}'\n"
    one = declared(GOOD.replace("[program.edges]", page + "[program.edges]"))
    with server, cameras():
        driver = program.declared([one]).connect(Target("program", "cameras"))
        try:
            with pytest.raises(EngineError, match="nor root, who listens there"):
                driver.poll(1.0)
        finally:
            driver.close()


@pytest.mark.parametrize("edges", ["", '[program.edges]\ncapture = ["decode"]\n'])
@pytest.mark.parametrize("counted", [False, True])
def test_who_counts_what_it_hands_on_is_no_guess(edges: str, counted: bool) -> None:
    """Of wake-ups it is one, whoever is said to feed whom."""
    page = "[program.metrics]\nprometheus = 'http://127.0.0.1:9/m'\n"
    page += "".join(f"tuples_{way} = '{way}{{op=\"$operator\"}}'\n" for way in ("in", "out"))
    one = declared(GOOD.partition("[program.edges]")[0] + page * counted + edges)
    with cameras():
        driver = program.declared([one]).connect(Target("program", "cameras"))
        assert isinstance(driver, program.ProgramDriver)
        assert driver.guesses == (set() if counted else {"tuples_out"})
        driver.close()


def test_replicas_that_come_and_go_share_what_is_counted_meanwhile() -> None:
    """1000 tuples/s, by a pool of two threads, of three, and of two again, after a long time."""
    series = program._Series("n", ("op",), {("decode",): [0, 1, 2]})
    fewer = replace(series, rows={("decode",): [0, 1]})
    parts, before, rates = program._Parts(), np.full(3, np.nan), []
    for second in range(60):
        three = 20 <= second < 40
        who = ["a", "b", "c"] if three else ["a", "b"]
        counted = 1e6 + 1000 * second
        column = parts.update(series if three else fewer, {("decode",): counted}, who)
        rates += [(now - then) for now, then in zip(column, before, strict=False)]
        before = column
    known = [rate for rate in rates if not math.isnan(rate)]
    assert set(map(round, known)) == {333, 500}
    again = parts.update(fewer, {("decode",): 40.0}, ["a", "b"])
    assert again - before == pytest.approx([20, 20]), "the process began anew"
    assert np.isnan(parts.update(fewer, {}, ["a", "b"])).all()
    later = parts.update(fewer, {("decode",): 60.0}, ["a", "b"])
    assert later - again == pytest.approx([10, 10]), "one page lacked it"


def cameras() -> AbstractContextManager["subprocess.Popen[str]"]:
    """The program above."""
    return running(sys.executable, "-S", "-c", CODE, MARK)


@pytest.fixture(autouse=True)
def untraced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(tracing.SWITCH, "0")
    monkeypatch.setattr(kernel, "RENAMED_S", 0.0)
    yield


def test_a_real_program_is_found_named_followed_and_lost() -> None:
    with cameras() as child:
        kind = program.declared([declared(OWN)])
        [found] = [target for target in kind.find() if target.pid == child.pid]
        assert found.engine == f"program:cameras@{found.uid}"
        driver = kind.connect(found)
        try:
            topology = driver.poll(1.0).topology
            assert set(topology.queries) == {"a", "b"} and len(topology.operators) == 4
            assert [helper.thread.name for helper in topology.helpers] == ["pool-1"]
            assert child.stdin is not None
            child.stdin.write("rename\n")
            child.stdin.flush()
            wait_until(lambda: len(driver.poll(1.0).topology.helpers) == 2, 30)
            child.kill()
            child.wait()
            with pytest.raises(EngineError, match="no process of cameras"):
                driver.poll(1.0)
        finally:
            driver.close()
        with pytest.raises(EngineError, match="did you mean 'cameras'"):
            kind.connect(Target("program", "camera"))


FEEDS = ("q_a_capture", "q_b_decode")
OF_ONE_NAME = ("q_a_decode1", "q_a_decode2")


@pytest.mark.parametrize(
    ("pattern", "edges", "queries"),
    [
        (r"q_.*_(?P<operator>[a-z]+)\d*", {FEEDS}, 2),
        (r"q_.*_(?P<operator>.*)", {FEEDS, OF_ONE_NAME}, 2),
        (r"q_.*", {FEEDS, OF_ONE_NAME}, 2),  # numbers alone may be those of stages
        (r"q_(?P<query>.)_(?P<operator>[a-z]+)\d*", {FEEDS}, 3),
        (r"q_.*(?P<operator>e)\d?", set(), 1),  # parts of one operator are none
    ],
)
def test_replicas_wake_each_other_and_feed_nobody_by_it(
    pattern: str, edges: set[tuple[str, str]], queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are a part of the program all the same, once that is sure."""
    monkeypatch.setenv(tracing.SWITCH, "0")
    monkeypatch.setattr(kernel, "WOKEN_S", 0.0)
    one = Program(name="x", find=Find(args=f"*{MARK}*"), threads={pattern: "operator"})
    with cameras() as child:
        driver = program.declared([one]).connect(Target("program", "x"))
        try:
            found = (procfs.stat(child.pid, tid) for tid in sorted(procfs.tids(child.pid)))
            names = [one.name if one is not None else "" for one in found]
            pairs = [(names.index(a), names.index(b)) for a, b in (FEEDS, OF_ONE_NAME)]
            driver._tracer = Wakes(child.pid, pairs)  # type: ignore[attr-defined]
            topology = driver.poll(1.0).topology
            names = [operator.threads[0].name for operator in topology.operators]
            assert {(names[e.source], names[e.target]) for e in topology.edges} == edges
            monkeypatch.setattr(kernel, "APART_S", 0.0)
            assert len(set(driver.poll(1.0).topology.queries)) == queries
        finally:
            driver.close()


def test_machines_that_hang_take_no_more_than_one_poll_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each took five seconds, one after the other; who was not asked is asked the next time."""
    now_s, hangs = 100.0, True
    asked: list[tuple[int, float]] = []

    class Machine(JavaProcess):
        def changed(self, *, wanted: bool) -> bool:
            return wanted or self.pid not in dict(asked)

        def look(self, timeout_s: float) -> None:
            nonlocal now_s
            asked.append((self.pid, timeout_s))
            now_s += timeout_s if hangs else 0.0

    monkeypatch.setattr(program, "JavaProcess", Machine)
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    with cameras() as first, cameras() as second, cameras() as third:
        pids = [child.pid for child in (first, second, third)]
        target = Target("program", "x", pids[0], os.getuid())
        java = msgspec.structs.replace(declared(OWN), names="java")
        driver = program.ProgramDriver(target, java, lambda: pids)
        assert asked == [(pids[0], program.ATTACH_S)]
        driver.poll(2.0)
        assert asked[1:] == [(pids[1], 2.0)]
        hangs = False
        driver.poll(2.0)
        assert asked[2:] == [(pids[2], 2.0)]
        driver.close()


def test_the_whole_machine_is_looked_through_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not at each poll, as any user may start thousands of processes."""
    monkeypatch.setattr(program, "AGAIN_S", 1e9)
    looked = []
    pids = procfs.pids

    def counted() -> list[int]:
        looked.append(1)
        return pids()

    monkeypatch.setattr(procfs, "pids", counted)
    with cameras() as child:
        driver = program.declared([declared(OWN)]).connect(Target("program", "cameras"))
        before = len(looked)
        with cameras() as later:
            assert later.pid not in driver.poll(1.0).topology.pids and len(looked) == before
            monkeypatch.setattr(program, "AGAIN_S", 0.0)
            monkeypatch.setattr(deadlines, "SELDOM", 0.0)
            child.kill()
            child.wait()
            assert driver.poll(1.0).topology.pids == {later.pid}
            with cameras() as third:
                assert driver.poll(1.0).topology.pids == {later.pid, third.pid}
        driver.close()


def test_another_users_process_is_not_in_the_way_of_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    """He can start one of that name whenever he likes; two users' need a name each."""
    with cameras() as child:
        here = {1001: [child.pid + 1], 0: [child.pid]}
        monkeypatch.setattr(program, "processes", lambda _: here)
        kind = program.declared([declared()])
        driver = kind.connect(Target("program", "cameras"))
        assert (driver.target.pid, driver.target.uid) == (child.pid, 0)
        driver.close()
        here[1002] = here.pop(0)
        with pytest.raises(EngineError, match="several users run it"):
            kind.connect(Target("program", "cameras"))
        kind = program.declared([declared()], lambda uid: uid == 1002)
        driver = kind.connect(Target("program", "cameras"))
        assert (driver.target.pid, driver.target.uid) == (child.pid, 1002)
        driver.close()


def test_nothing_is_found_that_nobody_declared() -> None:
    assert program.kind.find() == []


def test_ours_is_not_offered_for_what_a_declaration_of_the_users_means(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = declared(OWN)
    monkeypatch.setattr(
        program, "shipped", lambda: {"ours": msgspec.structs.replace(own, name="ours")}
    )
    with cameras() as child:
        offered = f"program:ours runs here (pid {child.pid})"
        look._unnamed(Settings())
        assert offered in capsys.readouterr().out
        look._unnamed(Settings(program=(own,)))
        assert capsys.readouterr().out == ""
        other = msgspec.structs.replace(own, find=Find(comm="none"))
        look._unnamed(Settings(program=(other,)))
        assert offered in capsys.readouterr().out


def test_explain_tells_each_thread_and_drafts_what_config_takes(tmp_path: Path) -> None:
    with cameras() as child:
        path = str(written(tmp_path, GOOD))
        told = CliRunner().invoke(
            make_app(), ["engines", "--config", path, "--explain", str(child.pid), "--json"]
        )
        rows = msgspec.json.decode(told.stdout)
        assert rows["program"] == "cameras"
        roles = {row["name"]: row["role"] for row in rows["threads"]}
        assert roles["q_a_capture"] == "operator" and roles["stranger"] is None
        (tmp_path / "none.toml").write_text("")
        none = str(tmp_path / "none.toml")
        told = CliRunner().invoke(
            make_app(), ["engines", "--config", none, "--explain", str(child.pid), "--json"]
        )
        draft = msgspec.json.decode(told.stdout)["draft"]
    [one] = load(written(tmp_path, draft)).program
    match = one.match("q_a_decode7")
    assert match is not None and match.role == "operator"
    assert one.match("unheard of") is None


def test_a_draft_escapes_only_what_means_something_in_a_pattern(tmp_path: Path) -> None:
    def drafted(name: str) -> str:
        names = ("main", "other", name)
        return drafts.draft(5, [Thread(5, 5 + i, 1 + i, one) for i, one in enumerate(names)], {})

    every = "".join(chr(i) for i in range(33, 127) if not chr(i).isalnum())
    for name in (f"valve{every[i : i + 8]}" for i in range(0, len(every), 8)):
        match = load(written(tmp_path, drafted(name))).program[0].match(name)
        assert match is not None and match.role == "operator", name
    assert "'north/a,b=c' = " in drafted("north/a,b=c")


ODD = "it's \N{GRINNING FACE}"


@pytest.mark.parametrize(
    "name", ["it's", 'a"b\\', "\x1b[31m", "\x9b'\x7f", ODD, "\u00fc", "a#b", ""]
)
def test_a_draft_of_any_names_is_a_declaration(tmp_path: Path, name: str) -> None:
    threads = [Thread(5, 5, 1, "main"), Thread(5, 6, 2, name), Thread(5, 7, 3, "w1")]
    pattern = pattern_of(name)
    edges = {"w#": (pattern,)} if name else {}
    text = drafts.draft(5, threads, edges)
    assert all(line.isprintable() for line in text.splitlines())
    [one] = load(written(tmp_path, text)).program
    assert one.match(name) is not None
    assert one.edges == edges


def test_threads_without_names_are_a_pool() -> None:
    def named(*names: str) -> list[Thread]:
        return [Thread(5, 5 + i, i, name) for i, name in enumerate(names)]

    assert drafts.pooled(named("vector", "vector-worker", "vector-worker"))
    assert not drafts.pooled(named("gst", "decode:src", "detect:src"))
    assert not drafts.pooled(named("sleep"))  # nothing to order, whatever the names


@pytest.mark.parametrize(
    "names", [["sleep"], ["qemu", "qemu", "qemu"], ["vector", "vector-worker1", "vector-worker2"]]
)
def test_of_a_pool_the_draft_is_of_the_whole_process(names: list[str], tmp_path: Path) -> None:
    threads = [Thread(5, 5 + i, i, name) for i, name in enumerate(names)]
    [one] = load(written(tmp_path, drafts.draft(5, threads))).program
    assert one.whole and not one.threads


JAVA_OWN = ["java", "main", "GC Thread#0", "VM Thread", "C2 CompilerThread0", "Signal Dispatcher"]
JAVA_OWN += ["Reference Handler", "Monitor Deflation Thread", "Notification Thread"]
JAVA_OWN += ["VM Periodic Task Thread", "GC task thread#0 (ParallelGC)"]
LONG = "writes to the archive of " + "all [years] " * 20


def test_of_a_java_program_the_draft_has_no_machines_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who took it as it is would else put the collector behind a reader."""
    monkeypatch.setattr(procfs, "command_line", lambda pid: ["java", "com.example.Pipeline"])
    names = [*JAVA_OWN, "reads orders", "parse-3-of-4-in-2", LONG]
    threads = [Thread(5, 5 + i, i, name) for i, name in enumerate(names)]
    edges = {"reads orders": ("parse-#-of-#-in-#",)}
    text = drafts.draft(5, threads, edges, ("java", "com.example.Pipeline"))
    [one] = load(written(tmp_path, text)).program
    assert (one.name, one.names, one.edges) == ("Pipeline", "java", edges)
    assert one.find.given == {"comm": "java", "args": "* com.example.Pipeline"}
    assert [one.match(name) is None for name in names] == [True] * 11 + [False] * 3
    # Where the machine tells nothing, by what the kernel has of their names.
    cut = [Thread(5, 5 + i, i, name[:15]) for i, name in enumerate(names)]
    [one] = load(written(tmp_path, drafts.draft(5, cut, {}, ("java", "app.jar")))).program
    assert (one.name, one.names) == ("app.jar", "kernel")
    roles = {name: match.role for name in names if (match := one.match(name[:15])) is not None}
    assert roles["GC Thread#0"] == roles["C2 CompilerThread0"] == "housekeeping"
    assert roles["reads orders"] == "operator"
    assert {roles[name] for name in JAVA_OWN} == {"housekeeping"}


@pytest.mark.parametrize("name", ["1.2.3.4:5-reads", "G1-2-3-4-5-6 my", "m1-2-3-4-5-6-7"])
def test_a_draft_has_no_pattern_for_nearly_everything(tmp_path: Path, name: str) -> None:
    threads = [Thread(5, 5 + i, i, one) for i, one in enumerate(["main", name, "read", "write"])]
    [one] = load(written(tmp_path, drafts.draft(5, threads))).program
    assert one.match("read") is not None and one.match(name) is None
    assert one.match("unheard of") is None and one.match("G9") is None


def test_edges_of_a_draft_are_of_the_kinds_that_it_has(tmp_path: Path) -> None:
    kinds = [chr(97 + i // 26) + chr(97 + i % 26) for i in range(200)]
    threads = [Thread(5, 5 + i, i, name) for i, name in enumerate(["main", *kinds])]
    edges = {a: (b,) for a, b in pairwise(kinds)}
    [one] = load(written(tmp_path, drafts.draft(5, threads, edges))).program
    assert 0 < len(one.edges) < 64


def test_a_draft_finds_the_process_whatever_its_name(tmp_path: Path) -> None:
    pid, exe = os.getpid(), os.path.realpath(sys.executable)
    cases = [("[a]*b?[c]*d?ef", {"comm": "?a??b??c??d?ef"}), ("", {"exe": exe})]
    for name, given in cases:
        text = drafts.draft(pid, [Thread(pid, pid, 1, name)])
        assert load(written(tmp_path, text)).program[0].find.given == given


@pytest.mark.parametrize(
    ("words", "args"),
    [
        (["python3", "e"], "* e"),
        (["python3", "e", "x"], "* e *"),
        (["python3", "/my files/feed.py"], "*/feed.py"),
        (["python3", f"/{'x' * 100}/feed.py", "1"], "*/feed.py *"),
        (["python3", "-c", "pass"], None),
    ],
)
def test_a_draft_asks_for_whole_words(
    words: list[str], args: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procfs, "command_line", lambda pid: words)
    text = drafts.draft(5, [Thread(5, 5, 1, "python3")], {}, drafts.started_with(5))
    assert load(written(tmp_path, text)).program[0].find.given.get("args") == args
    assert ("all processes of python3" in text) is (args is None)


def test_a_draft_of_thousands_of_names_is_a_declaration(tmp_path: Path) -> None:
    kinds = ["".join(chr(97 + i // 26**j % 26) for j in range(3)) for i in range(5000)]
    threads = [Thread(5, 5 + i, i, name) for i, name in enumerate(["main", *kinds])]
    text = drafts.draft(5, threads)
    [one] = load(written(tmp_path, text)).program
    assert len(one.threads) == 64
    assert text.endswith("# and 4937 other names, which are left alone")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["/usr/bin/java", "-Xmx1g", "-cp", "a.jar:b.jar", "a.Main", "x"], ("java", "a.Main")),
        (["java", "--add-opens", "java.base/java.lang=ALL-UNNAMED", "-jar", "a.jar"], None),
        (["python3.11", "-u", "-m", "tools.feed"], ("python3.11", "tools.feed")),
        (["python3", "-c", "import this; print()"], ("python3", "")),
        (["perl"], ("perl", "")),
        (["java", "--enable-native-access", "ALL", "-cp", ".", "Feed"], ("java", "Feed")),
        (["java", "--source", "17", "Feed.java"], ("java", "Feed.java")),
        (["java", "@opts", "a.Main"], ("java", "")),
        (["python3", "-W", "ignore", "-X", "dev", "feed.py"], ("python3", "feed.py")),
        (["python3", "-c", "pass"], ("python3", "")),
        (["perl", "-I", "lib", "x"], ("perl", "x")),
        (["ruby", "-I", "lib", "x"], ("ruby", "x")),
        (["node", "-r", "dotenv/config", "feed.js"], ("node", "feed.js")),
        (["bash", "-o", "pipefail", "feed.sh"], ("bash", "feed.sh")),
        (["sh", "-c", "feed"], ("sh", "")),
        (["sh", "-e", "feed"], ("sh", "feed")),
        (["gst-launch-1.0", "fakesrc"], ("", "")),
        ([], ("", "")),
    ],
)
def test_which_program_an_interpreter_runs(
    words: list[str], expected: tuple[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(procfs, "command_line", lambda pid: words)
    assert drafts.started_with(5) == (expected or ("java", "a.jar"))


def test_a_draft_is_not_broken_at_the_width_of_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "none.toml").write_text("")
    with cameras() as child:
        told = CliRunner(env={"COLUMNS": "40"}).invoke(
            make_app(),
            ["engines", "--config", str(tmp_path / "none.toml"), "--explain", str(child.pid)],
        )
    _, _, draft = told.stdout.partition("\n\n")
    [one] = load(written(tmp_path, draft.partition("\n\n")[0])).program
    assert one.match("q_a_capture") is not None


def test_an_exception_above_a_wide_pattern_is_no_ambiguity(tmp_path: Path) -> None:
    text = GOOD.replace("[program.edges]", "'.*' = \"operator\"\n[program.edges]")
    [one] = load(written(tmp_path, text)).program
    threads = [Thread(5, 5 + i, i, name) for i, name in enumerate(["pool-1", "q_a_capture"])]
    notes = " ".join(program.sorted_threads(one, threads).notes)
    assert "'q_a_capture' matches" in notes and "'pool-1' matches" not in notes


def test_a_name_that_nobody_declared_is_refused_at_once() -> None:
    with pytest.raises(SettingError, match="did you mean 'gstreamer'") as refused:
        wanted_kinds(Settings(engine=("program:gstraemer",)), {"program": program.kind})
    assert refused.value.hint is not None and "gstreamer" in refused.value.hint


def test_a_file_of_programs_that_is_missing_names_its_own_flag() -> None:
    with pytest.raises(ConfigError) as refused:
        sections_of(Path("/nonexistent"), "program")
    assert "--program" in str(refused.value.hint)


def test_a_pattern_may_be_as_long_as_is_said_and_no_longer() -> None:
    assert fault_of("a" * LONGEST) is None
    told = fault_of("a" * (LONGEST + 1))
    assert told is not None and f"longer than {LONGEST}" in told[0]


def test_choices_count_by_branch_and_up_to_what_is_said() -> None:
    most = "a?" * MOST_CHOICES
    for fine in (most, f"{most}|{most}", f"x|{most}", "(" + "a|" * MOST_CHOICES + "b)", "a{3}" * 9):
        assert fault_of(fine) is None, fine
    for much in (f"{most}b*", f"{most}b+|x", f"x|{most}b?", "(" + "a|" * MOST_CHOICES + "b)c?"):
        assert fault_of(much) is not None, much
    assert fault_of(most + "b?", MOST_CHOICES + 1) is None
    assert fault_of("(ab)+" * 2) is None and fault_of("(ab?)+") is not None
    assert fault_of("(a|b)") is None and fault_of("(a|b)c{2}") is None
    assert fault_of("(a|b){2}") is not None and fault_of("((a)b?){2}") is not None


@pytest.mark.parametrize(
    ("pattern", "least"),
    [
        *(("abc", 3), ("a*b", 1), ("a+b?", 1), ("(?P<operator>ab|c)d", 2), ("a{3}b{2,}", 5)),
        *(("a|bcd", 1), ("[^:]{15}", 15), (r"\w\d\.", 3), ("a{,3}", 0), ("(a(b|cd)e)f", 4)),
        *((r"\Aab\Z", 2), ("(ab){2}", 4), ("a{2}?", 2), (".*?x", 1), ("^a$", 1)),
    ],
)
def test_how_short_a_name_may_be(pattern: str, least: int) -> None:
    assert fault_of(pattern) is None and shortest(pattern) == least


def test_a_pattern_that_no_cut_name_matches_is_refused() -> None:
    for names, cut in (("kernel", COMM_LENGTH), ("java", JAVA_LENGTH)):
        most = "x" * cut
        assert faults_of(threads={most: "operator"}, names=names) == []
        [told] = faults_of(threads={f"{most}y": "operator"}, names=names)
        assert f"no name has {cut + 1} characters" in told


def faults_of(**changed: object) -> list[str]:
    changed_one = msgspec.structs.replace(declared(), **changed)
    return [f"{key}: {message}" for _, key, message, _ in faults([changed_one])]


def test_bounds_of_a_declaration_are_good_themselves() -> None:
    assert faults_of() == []
    as_many = {f"t{number}": "operator" for number in range(MOST_PATTERNS)}
    assert faults_of(threads=as_many) == []
    [told] = faults_of(threads={**as_many, "more": Helper(role="housekeeping")})
    assert f"more than {MOST_PATTERNS}" in told
    assert faults_of(find=Find(comm="x" * COMM_LENGTH)) == []
    [told] = faults_of(find=Find(comm="x" * (COMM_LENGTH + 1)))
    assert "cuts names" in told
    nothing: dict[str, str | Helper] = {"gc": Helper(role="housekeeping")}
    assert faults_of(threads=nothing, whole=True) == []
    assert faults_of(threads=nothing) == ["threads: no pattern is of operators"]
    assert faults_of(edges={"a": ("b", "c"), "b": ("c",), "c": ()}) == []
    assert faults_of(edges={"a": ("b",), "b": ("c",), "c": ("b",)}) == ["edges: 'b' feeds itself"]


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        ({}, []),
        ({"prometheus": "http://h:65535"}, []),
        ({"prometheus": "http://h:65536"}, ["metrics.prometheus: 'http://h:65536' is no address"]),
        ({"prometheus": "http://h:0"}, ["metrics.prometheus: 'http://h:0' is no address"]),
        ({"prometheus": "http://h:1"}, []),
        ({"tuples_in": ""}, ["metrics.tuples_in: it is needed"]),
        ({"tuples_out": "n"}, ["metrics.tuples_out: all operators would have one counter"]),
        ({"tuples_out": "n{"}, ["metrics.tuples_out: 'n{' is no counter"]),
        ({"tuples_out": 'n{a="$operator",b="$q"}'}, ["metrics.tuples_out: there is no $q"]),
    ],
)
def test_where_counters_come_from(metrics: dict[str, str], told: list[str]) -> None:
    good = {"prometheus": "http://h:9000/m", "tuples_in": 'n{l="$operator"}'}
    assert faults_of(metrics=Counters(**{**good, **metrics})) == told


def test_the_page_of_a_program_has_a_path_by_default() -> None:
    assert Counters(prometheus="http://[::1]:9000").address == ("::1", 9000, "/metrics")
    assert Counters(prometheus="http://h:80/x").address == ("h", 80, "/x")
