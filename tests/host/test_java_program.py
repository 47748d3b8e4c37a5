"""Programs by declaration whose names a Java virtual machine tells, on a real one."""

import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sched_ctl.drivers import Target, drafts, kernel, program
from sched_ctl.drivers.finding import is_of
from sched_ctl.drivers.threads import threads_of
from sched_ctl.kernel import tracing
from sched_ctl.model.programs import Program, faults
from sched_ctl.model.topology import Thread, Topology
from support import running, wait_until

pytestmark = [pytest.mark.host, pytest.mark.needs("root", "java")]

# Threads of Connect: a pool's, which get their names from what they run, as its tasks do.
JAVA = """
import java.util.concurrent.*;
public class Connect {
    public static void main(String[] args) throws Exception {
        ExecutorService pool = Executors.newCachedThreadPool();
        for (String name : new String[] {"fast-alarms-0", "slow-archive-0", "slow-archive-1"})
            pool.execute(() -> task(name));
        CountDownLatch over = new CountDownLatch(1);
        pool.execute(() -> { try { over.await(); } catch (InterruptedException e) { }
                             task("moved-late-0"); });
        System.out.println("runs");
        System.in.read();
        over.countDown();
        System.in.read();
        System.exit(0);
    }
    static void task(String name) {
        Thread.currentThread().setName("task-thread-" + name);
        try { Thread.sleep(300_000); } catch (InterruptedException e) { }
    }
}
"""


@pytest.fixture(autouse=True)
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(tracing.SWITCH, "0")
    monkeypatch.setattr(kernel, "RENAMED_S", 0.0)


@pytest.fixture
def child(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    (tmp_path / "Connect.java").write_text(JAVA)
    subprocess.run(["javac", "-d", ".", "Connect.java"], cwd=tmp_path, check=True)
    # The last word is the main class by which a worker is found.
    main = "org.apache.kafka.connect.cli.ConnectStandalone"
    with running("java", "-Xmx64m", "-cp", str(tmp_path), "Connect", main) as child:
        yield child


def test_a_connector_is_a_query_and_a_pools_thread_is_followed_when_it_gets_a_name(
    child: "subprocess.Popen[str]",
) -> None:
    mine = program.shipped()["kafka-connect"]
    driver = program.ProgramDriver(Target("program", mine.name), mine, lambda: [child.pid])

    def seen() -> Topology:
        return driver.poll(5.0).topology

    try:
        wait_until(lambda: len(seen().operators) == 3, 60)
        assert set(seen().queries) == {"fast-alarms", "slow-archive"}
        assert {"gc", "jit", "jvm"} <= {helper.role for helper in seen().helpers}
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
        wait_until(lambda: "moved-late" in seen().queries, 60)
    finally:
        driver.close()
    found, rows = drafts.explained([mine], child.pid, threads_of(child.pid))
    assert found is mine
    roles = {thread.name: match.role for thread, match in rows if match is not None}
    assert roles["task-thread-slow-archive-1"] == "operator"
    assert roles["Signal Dispatcher"] == "jvm"


def test_the_draft_of_an_unknown_one_has_its_threads_by_their_whole_names(
    child: "subprocess.Popen[str]",
) -> None:
    def started() -> list[Thread] | None:
        found = drafts.told_by_java(child.pid, threads_of(child.pid))
        tasks = [thread for thread in found if thread.name.startswith("task-thread-")]
        return found if len(tasks) == 3 else None

    threads = wait_until(started, 60) or pytest.fail()
    text = drafts.draft(child.pid, threads, {}, drafts.started_with(child.pid))
    [one] = msgspec.convert(tomllib.loads(text)["program"], list[Program])
    assert not [*faults([one])] and is_of(one, child.pid)
    assert (one.name, one.names) == ("Connect", "java")
    roles = {
        thread.name: match and match.role
        for thread in threads
        for match in [one.match(thread.name)]
    }
    assert roles["task-thread-slow-archive-1"] == "operator"
    assert {roles[name] for name in ("Signal Dispatcher", "VM Thread", "java")} == {None}
