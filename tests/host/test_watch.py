"""`sched-ctl watch`: all that a controller tells, and nothing changed."""

import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from labs import SOON_S, command, loaded, nices, sched_ctl, scheduled, spe

from sched_ctl.lab.engine import Engine
from sched_ctl.runfolder import RunFolder
from sched_ctl.service import socket as control
from support import wait_until

pytestmark = [pytest.mark.host, pytest.mark.needs("root", "cc")]


@contextmanager
def watching(run_dir: Path, engine: Engine, *more: str) -> Iterator["subprocess.Popen[str]"]:
    flags = ("--run-dir", str(run_dir), "--engine", engine.name, "--period", "0.2", *more)
    with (run_dir.parent / "watch.log").open("w") as log:
        process = subprocess.Popen(command("watch", *flags), stderr=log, text=True)
    try:
        wait_until(RunFolder(RunFolder(run_dir).watched).socket.exists, 2 * SOON_S)
        yield process
    finally:
        process.kill()
        process.wait()


def asked(run_dir: Path, verb: str, **arguments: object) -> Any:
    return control.request(run_dir, verb, arguments)


def scraped(path: Path) -> str:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(path))
        peer.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        return b"".join(iter(lambda: peer.recv(1 << 16), b"")).decode()


def test_one_that_looks_beside_one_that_schedules(tmp_path: Path) -> None:
    run_dir, page, records = tmp_path / "run", tmp_path / "page.sock", tmp_path / "records"
    watched = RunFolder(run_dir).watched
    with spe(duration_s=240) as engine:
        before = nices(engine)
        more = ("--metrics", str(page), "--record", str(records), "--record-period", "1")
        with watching(run_dir, engine, *more) as looking:
            wait_until(
                lambda: any(e["queries"] for e in asked(run_dir, "status")["engines"]), SOON_S
            )
            assert asked(run_dir, "top")["only_looks"]  # nobody else answers
            [query] = asked(run_dir, "bottlenecks")
            assert query["query"] == "etl" and query["verdict"] != "unknown"
            told = asked(run_dir, "explain", what="etl/Join")[0]
            assert told["verdict"]
            assert told["replicas"] is None  # of a few tuples a second
            assert "operator_time_ratio" in scraped(page)
            assert "somebody looks already" in sched_ctl(
                "watch", "--run-dir", str(run_dir), "--engine", engine.name, code=1
            )
            assert nices(engine) == before
            assert [path.name for path in watched.iterdir()] == ["control.sock"]
            assert [path.name for path in run_dir.iterdir()] == ["watch"]
            options = ("--backend", "nice", "--policy", "constant", "--policy-option", "default=1")
            with loaded(run_dir, *options, engine=engine):
                wait_until(RunFolder(run_dir).socket.exists, 3 * SOON_S)
                scheduled(run_dir, engine)
                assert not asked(run_dir, "status")["only_looks"]
                assert asked(watched, "status")["only_looks"]
            assert nices(engine) == before
            looking.send_signal(signal.SIGINT)
            assert looking.wait(SOON_S) == 0
        assert not watched.exists() and list(records.iterdir())


def test_what_the_controller_serves_and_records_stays_with_it(tmp_path: Path) -> None:
    """Both read one file; what the command line names is an error instead."""
    run_dir, page, records = tmp_path / "run", tmp_path / "page.sock", tmp_path / "records"
    config = tmp_path / "shared.toml"
    config.write_text(f'metrics = "{page}"\nrecord = "{records}"\nrecord_period = 1\n')
    options = ("--config", str(config), "--backend", "nice")
    with spe(duration_s=240) as engine, loaded(run_dir, *options, engine=engine):
        scheduled(run_dir, engine)
        wait_until(lambda: list(records.glob("*.part")), SOON_S)
        [part] = records.glob("*.part")
        own = ("watch", "--run-dir", str(run_dir), "--engine", engine.name)
        assert "somebody listens" in sched_ctl(*own, "--metrics", str(page), code=1)
        assert "records" in sched_ctl(*own, "--record", str(records), code=1)
        with watching(run_dir, engine, "--config", str(config)) as looking:
            assert "sched_ctl" in scraped(page)
            looking.send_signal(signal.SIGINT)
            assert looking.wait(SOON_S) == 0
        said = (tmp_path / "watch.log").read_text()
        assert "this one has no page" in said and "this one does not" in said
        assert "sched_ctl" in scraped(page)
        assert [*records.iterdir()] == [part]
