"""`sched-ctl load` on real threads, and the ways it can end."""

import os
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from labs import SOON_S, WORKLOADS, command, loaded, nices, sched_ctl, scheduled, spe

from sched_ctl.kernel import procfs
from sched_ctl.lab import engine as lab
from support import wait_until

pytestmark = [pytest.mark.host, pytest.mark.needs("root", "cc")]

BACKEND = ("--backend", "nice")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_nice_values_follow_the_policy_and_sigterm_puts_them_back(run_dir: Path) -> None:
    with spe() as engine:
        before = nices(engine)
        with loaded(run_dir, "--policy", "hr", *BACKEND, engine=engine) as load:
            scheduled(run_dir, engine)

            def follows() -> bool:
                """Explained, applied and real agree; retried, as costs change all the time."""
                answer = sched_ctl("explain", "etl/*", "--json", "--run-dir", str(run_dir))
                rows = msgspec.json.decode(answer)
                assert len(rows) == 10
                now = nices(engine)
                real = [now[row["name"][:15]][0] for row in rows]
                if real != [row["applied"]["nice"] for row in rows]:
                    return False
                ranked = sorted(zip([row["evaluated"] for row in rows], real, strict=True))
                order = [nice for _, nice in ranked]
                return order == sorted(order, reverse=True) and len(set(order)) > 3

            wait_until(follows, SOON_S, "nice values follow the urgencies")
            load.send_signal(signal.SIGTERM)
            assert load.wait(SOON_S) == 0
        assert nices(engine) == before


def test_it_takes_little_memory(run_dir: Path) -> None:
    """48 to 53 MB, the more where the sources are compiled at the start."""
    with spe() as engine, loaded(run_dir, *BACKEND, engine=engine) as load:
        scheduled(run_dir, engine)
        [kilobytes, _] = procfs.field(f"/proc/{load.pid}/status", "VmRSS") or ["0", ""]
        assert 0 < int(kilobytes) < 58_000


def schedule_and_kill(run_dir: Path, engine: lab.Engine) -> None:
    """A controller changes the engine's nice values and is then ended by SIGKILL."""
    before = nices(engine)
    with loaded(run_dir, "--policy", "hr", *BACKEND, engine=engine) as load:
        scheduled(run_dir, engine)
        wait_until(lambda: nices(engine) != before, SOON_S)
        load.kill()
        load.wait()


def test_kill_9_and_restore(run_dir: Path) -> None:
    with spe() as engine:
        before = nices(engine)
        schedule_and_kill(run_dir, engine)
        assert nices(engine) != before  # nobody has put it back yet
        error = sched_ctl("status", "--run-dir", str(run_dir), code=1)
        assert "no controller runs" in error and "hint: " in error
        assert "as it was" in sched_ctl("restore", "--run-dir", str(run_dir))
        assert nices(engine) == before


def test_a_run_folder_that_somebody_removes_is_made_again(run_dir: Path) -> None:
    """With all that is needed to ask the controller, to keep others away and to put back."""
    with spe() as engine:
        before = nices(engine)
        with loaded(run_dir, "--policy", "hr", *BACKEND, engine=engine) as load:
            scheduled(run_dir, engine)
            wait_until(lambda: nices(engine) != before, SOON_S)
            shutil.rmtree(run_dir)
            files = [run_dir / name for name in ("journal", "lock", "control.sock")]
            wait_until(lambda: all(file.exists() for file in files), SOON_S)
            scheduled(run_dir, engine)
            error = sched_ctl("load", "--run-dir", str(run_dir), *BACKEND, code=1)
            assert f"another controller is running: pid {load.pid}" in error
            load.kill()
            load.wait()
        assert nices(engine) != before
        assert "as it was" in sched_ctl("restore", "--run-dir", str(run_dir))
        assert nices(engine) == before


def test_root_of_a_user_namespace_changes_nothing(run_dir: Path) -> None:
    with spe() as engine:
        before = nices(engine)
        load = command("load", "--run-dir", str(run_dir), *BACKEND)
        done = subprocess.run(
            ["unshare", "--user", "--map-root-user", *load],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 1 and "CAP_SYS_NICE" in done.stderr, done.stderr
        assert nices(engine) == before


def test_one_that_is_stopped_is_ended_by_force(run_dir: Path) -> None:
    with spe() as engine:
        before = nices(engine)
        with loaded(run_dir, "--policy", "hr", *BACKEND, engine=engine) as load:
            scheduled(run_dir, engine)
            wait_until(lambda: nices(engine) != before, SOON_S)
            load.send_signal(signal.SIGSTOP)
            for verb in ("status", "unload"):
                error = sched_ctl(verb, "--run-dir", str(run_dir), code=1)
                assert f"the controller is stopped, and answers nobody: pid {load.pid}" in error
                assert "unload --force" in error
            assert "is stopped" in sched_ctl("restore", "--run-dir", str(run_dir), code=1)
            assert "as it was" in sched_ctl("unload", "--force", "--run-dir", str(run_dir))
            assert load.wait(SOON_S) == -signal.SIGKILL
        assert nices(engine) == before


def test_the_next_start_puts_back_what_a_killed_one_left(run_dir: Path) -> None:
    with spe() as engine:
        before = nices(engine)
        schedule_and_kill(run_dir, engine)
        # An engine that is not there: nothing new is applied.
        sched_ctl(
            "load", "--engine", "lab:1", "--duration", "0", "--run-dir", str(run_dir), *BACKEND
        )
        assert nices(engine) == before


def test_a_second_controller_names_the_first(run_dir: Path) -> None:
    with spe() as engine, loaded(run_dir, *BACKEND, engine=engine) as load:
        scheduled(run_dir, engine)
        error = sched_ctl("load", "--run-dir", str(run_dir), *BACKEND, code=1)
        assert f"another controller is running: pid {load.pid}" in error
        assert "Traceback" not in error
        error = sched_ctl("restore", "--run-dir", str(run_dir), code=1)
        assert f"pid {load.pid}" in error


def test_unload_returns_when_all_is_put_back(run_dir: Path) -> None:
    with spe() as engine:
        before = nices(engine)
        with loaded(run_dir, *BACKEND, engine=engine) as load:
            scheduled(run_dir, engine)
            assert "as it was" in sched_ctl("unload", "--run-dir", str(run_dir))
            assert nices(engine) == before
            assert load.wait(SOON_S) == 0
        assert sorted(path.name for path in run_dir.iterdir()) in (["lock"], ["journal", "lock"])


def test_policy_set_changes_the_running_policy(run_dir: Path) -> None:
    with spe() as engine, loaded(run_dir, "--policy", "hr", *BACKEND, engine=engine):
        scheduled(run_dir, engine)
        hr = nices(engine)
        answer = sched_ctl(
            "policy", "set", "random", "--option", "seed=5", "--json", "--run-dir", str(run_dir)
        )
        assert msgspec.json.decode(answer)["before"] == "hr"
        wait_until(lambda: nices(engine) != hr, SOON_S)
        error = sched_ctl("policy", "set", "radnom", "--run-dir", str(run_dir), code=1)
        assert "did you mean 'random'" in error


def test_targets_are_counted_and_what_is_impossible_is_said(run_dir: Path) -> None:
    """By the engine's own histogram: no tuple takes a minute, and none a microsecond."""
    stated = ("alarm0=2s", "alarm*=1min", "bulk0=1us")
    targets = [word for target in stated for word in ("--target", target)]
    targets += ["--policy", "deadline", "--policy-option", "others=constant"]  # and no race
    with spe("targets") as engine:
        before = nices(engine)
        with loaded(run_dir, *targets, *BACKEND, engine=engine):

            def told() -> dict[str, dict[str, Any]]:
                status = scheduled(run_dir, engine)
                [rule] = status["policies"]
                assert rule["policy"] == "deadline"
                rows = {row["query"]: row for row in status["targets"]}
                return rows if all(row["met"] is not None for row in rows.values()) else {}

            rows = wait_until(told, SOON_S, "hit rates are known")
            assert sorted(rows) == ["alarm0", "alarm1", "alarm2", "alarm3", "bulk0"]
            bulk, first = rows.pop("bulk0"), rows.pop("alarm0")
            assert (first["latency_s"], first["standing"]) == (2, "meets")
            assert (bulk["met"], bulk["standing"]) == (0, "over")
            assert "cannot be met: its path alone takes" in bulk["says"]
            for row in rows.values():
                assert (row["met"], row["met_hour"], row["standing"]) == (1, 1, "meets")
                assert row["source"] == "counted" and 0 < row["p99_s"] < 60
                assert row["in_the_way"] is None
            shown = sched_ctl("status", "--run-dir", str(run_dir))
            assert "alarm0" in shown and "target of bulk0: cannot be met" in shown
            explained = sched_ctl("explain", "alarm1/*", "--run-dir", str(run_dir))
            assert "99% within 60 s: 100% now" in explained
            assert "several targets are for alarm0: alarm0=2s counts" in " ".join(shown.split())
            # Whose target is in danger soonest goes before who has none, or none that can be met.

            def ordered() -> bool:
                now = nices(engine)
                return now["alarm0-read"] < now["bulk1-read"] == now["bulk0-read"]

            wait_until(ordered, SOON_S, "nice values follow the targets")
            sched_ctl("unload", "--run-dir", str(run_dir))
            assert nices(engine) == before


def test_an_engine_that_comes_back_is_scheduled_again(run_dir: Path) -> None:
    # The controller finds all engines of this machine; this query is ours alone.
    query = f"test-{os.getpid()}"
    workload = run_dir.with_suffix(".graph")
    etl = (WORKLOADS / "etl.graph").read_text()
    workload.write_text(etl.replace("\nquery etl", f"\nquery {query}"))
    with loaded(run_dir, "--policy", f"{query}=hr", "--engine", "lab", *BACKEND):
        for _ in range(2):  # the second is another process with other threads
            with spe(workload) as engine:
                scheduled(run_dir, engine)
                wait_until(lambda: len(set(nices(engine).values())) > 3, SOON_S)
                engine.process.kill()
                engine.process.wait()


def test_a_stopped_engine_holds_up_no_other(run_dir: Path) -> None:
    with (
        spe() as stopped,
        spe("stats") as other,
        loaded(
            run_dir,
            *("--policy", "hr", "--engine", stopped.name, "--stale-after", "1", *BACKEND),
            engine=other,
        ),
    ):
        scheduled(run_dir, other)
        scheduled(run_dir, stopped)
        before = nices(other)
        os.kill(stopped.pid, signal.SIGSTOP)
        try:
            # Its shared memory goes stale after five seconds; a second later it is released.
            wait_until(
                lambda: len({nice for nice, _ in nices(stopped).values()}) == 1, SOON_S, "released"
            )
            assert len(set(nices(other).values())) > 3
            status = msgspec.json.decode(sched_ctl("status", "--json", "--run-dir", str(run_dir)))
            assert any(stopped.name in problem for problem in status["problems"])
            [rule] = status["policies"]
            assert rule["engines"] == [other.name] and rule["threads"] == len(before) - 2
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        wait_until(lambda: len(set(nices(stopped).values())) > 3, SOON_S, "scheduled again")


def test_excluded_queries_are_never_touched(run_dir: Path) -> None:
    with spe("multi") as engine:
        before = nices(engine)
        with loaded(run_dir, "--policy", "random", "--exclude", "high*", *BACKEND, engine=engine):
            scheduled(run_dir, engine)
            wait_until(lambda: nices(engine) != before, SOON_S)
            spared = {name for name in before if name.startswith("high")}
            now = nices(engine)
            assert spared and {name: now[name] for name in spared} == {
                name: before[name] for name in spared
            }


def test_sighup_and_reload_read_the_configuration_again(run_dir: Path) -> None:
    file = run_dir.with_suffix(".toml")
    file.write_text('[[policy]]\npolicy = "hr"\n')
    with (
        spe() as engine,
        loaded(run_dir, "--config", str(file), *BACKEND, engine=engine) as load,
    ):
        scheduled(run_dir, engine)
        before = nices(engine)

        def policy() -> str:
            answer = sched_ctl("status", "--json", "--run-dir", str(run_dir))
            return str(msgspec.json.decode(answer)["policies"][0]["policy"])

        assert policy() == "hr"
        file.write_text('[[policy]]\npolicy = "random"\n')
        load.send_signal(signal.SIGHUP)
        wait_until(lambda: policy() == "random", SOON_S)
        wait_until(lambda: nices(engine) != before, SOON_S)
        file.write_text('[[policy]]\npolicy = "radnom"\n')
        error = sched_ctl("reload", "--run-dir", str(run_dir), code=1)
        assert f"{file}: policy[0].policy" in error and "did you mean 'random'" in error
        assert policy() == "random"
        file.write_text('[[policy]]\npolicy = "qs"\n')
        assert "policy" in sched_ctl("reload", "--run-dir", str(run_dir))
        assert policy() == "qs" and load.poll() is None


def test_the_service_manager_is_told(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ready after the first pass; alive for as long as the loop goes round, and no longer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "150000")
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        manager.settimeout(SOON_S)

        def told(message: bytes) -> None:
            while manager.recv(1000) != message:
                pass

        with spe() as engine, loaded(run_dir, *BACKEND, engine=engine) as load:
            told(b"READY=1")
            scheduled(run_dir, engine)
            for _ in range(3):
                told(b"WATCHDOG=1")
            load.send_signal(signal.SIGSTOP)
            manager.setblocking(False)
            with suppress(BlockingIOError):
                while manager.recv(1000):
                    pass
            manager.settimeout(1)
            with pytest.raises(TimeoutError):
                manager.recv(1000)
            load.send_signal(signal.SIGCONT)
            manager.settimeout(SOON_S)
            told(b"WATCHDOG=1")
            load.send_signal(signal.SIGTERM)
            told(b"STOPPING=1")


def test_a_terminal_that_goes_away_ends_it_in_order(run_dir: Path) -> None:
    with spe() as engine:
        before = nices(engine)
        ours, its = os.openpty()
        with loaded(run_dir, *BACKEND, engine=engine, terminal=its) as load:
            os.close(its)
            scheduled(run_dir, engine)
            load.send_signal(signal.SIGHUP)  # its terminal is there: this is no end
            log = run_dir.with_suffix(".log")
            wait_until(lambda: "configuration read again" in log.read_text(), SOON_S)
            assert load.poll() is None
            os.close(ours)

            def ended() -> bool:
                load.send_signal(signal.SIGINT)  # more of them change nothing, up to the end
                return load.poll() is not None

            wait_until(ended, SOON_S, "ended")
            assert load.returncode == 0
        assert nices(engine) == before
        assert "everything is as it was before" in run_dir.with_suffix(".log").read_text()
