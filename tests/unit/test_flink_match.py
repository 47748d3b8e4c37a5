"""Which process of this machine is a TaskManager that a JobManager lists."""

from dataclasses import dataclass

import pytest

from sched_ctl.drivers.flink import local
from sched_ctl.drivers.flink.plan import TaskManager
from sched_ctl.drivers.sources import search
from sched_ctl.kernel import procfs
from sched_ctl.kernel.netns import Listener

MANAGER = 1
DATA, RPC = 40001, 40002


@dataclass(frozen=True)
class Process:
    """network: the processes with the same one share a namespace, in which these addresses are.

    host: where it listens; 127.0.0.1 stands for all addresses, too.
    """

    ports: tuple[int, ...] = (DATA, RPC)
    network: str = "own"
    addresses: tuple[str, ...] = ("127.0.0.1",)
    name: str = ""
    uid: int = 1000
    host: str = "127.0.0.1"


def matched(
    monkeypatch: pytest.MonkeyPatch, processes: dict[int, Process], *known: TaskManager
) -> tuple[dict[int, str], list[str]]:
    """The JobManager's namespace is "own", the controller's "ours"."""

    def text(path: str) -> str:
        return "".join(f"|-- {one}\n" for one in processes[int(path.split("/")[2])].addresses)

    def command_line(pid: int) -> list[str]:
        return ["java", "-D", f"taskmanager.resource-id={processes[pid].name}"]

    def listening(pid: int) -> list[Listener]:
        return [Listener(port, processes[pid].host) for port in processes[pid].ports]

    monkeypatch.setattr(search, "listening", listening)
    monkeypatch.setattr(procfs, "command_line", command_line)
    monkeypatch.setattr(procfs, "text", text)
    monkeypatch.setattr(procfs, "owner", lambda pid: processes[pid].uid)
    networks = {MANAGER: "own", None: "ours"}
    monkeypatch.setattr(
        local,
        "same_network",
        lambda pid, other=None: processes[pid].network == networks[other],
    )
    found, notes, disputed = local.match(processes, known, MANAGER)
    assert disputed.keys() == {one.id for one in known if f"{one.id}: none of them" in str(notes)}
    return {pid: one.id for pid, one in found.items()}, notes


def one(name: str = "a", address: str = "127.0.0.1") -> TaskManager:
    return TaskManager(name, f"pekko.tcp://flink@{address}:{RPC}/user/rpc/taskmanager_0", DATA)


@pytest.mark.parametrize("ports", [(DATA, RPC, 9249), (DATA,), (RPC,)])
def test_beside_its_job_manager(monkeypatch: pytest.MonkeyPatch, ports: tuple[int, ...]) -> None:
    assert matched(monkeypatch, {5: Process(ports)}, one()) == ({5: "a"}, [])


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1"])
def test_a_port_of_anothers_that_coincides(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """The one that is listed has died a moment ago, or is on another machine."""
    other = Process((RPC, 40007), network="another", addresses=("127.0.0.1", "10.0.0.2"))
    assert matched(monkeypatch, {5: other}, one(address=address)) == ({}, [])


def test_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers with the same fixed port: as many as there are."""
    pods = {pid: Process((RPC,), f"pod {pid}", ("127.0.0.1", f"10.0.0.{pid}")) for pid in (5, 6, 7)}
    listed = [one("a", "10.0.0.7"), one("b", "10.0.0.5"), one("c", "10.0.0.9")]
    assert matched(monkeypatch, pods, *listed) == ({7: "a", 5: "b"}, [])


def test_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind other ports and addresses than its own."""
    mapped = {5: Process((RPC,), "x", name="a"), 6: Process(network="y", name="b")}
    assert matched(monkeypatch, mapped, one("a", "10.0.0.1")) == ({5: "a"}, [])


def test_behind_mapped_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another address than the container's, which has no name: both ports have to be its own."""
    container = Process(network="container", addresses=("127.0.0.1", "172.17.0.2"))
    assert matched(monkeypatch, {5: container}, one(address="10.0.0.1")) == ({5: "a"}, [])
    assert matched(monkeypatch, {5: container}, one(address="127.0.0.1")) == ({5: "a"}, [])
    two = {5: container, 6: container}
    assert matched(monkeypatch, two, one(address="10.0.0.1")) == (
        {},
        ["several processes of this machine may be TaskManager a"],
    )


def test_two_clusters_with_the_same_ports_and_names(monkeypatch: pytest.MonkeyPatch) -> None:
    both = {5: Process(network="another", name="a"), 6: Process(name="a")}
    assert matched(monkeypatch, both, one()) == ({6: "a"}, [])


def test_another_users_process_with_the_right_name_takes_nobodys_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, other = Process(), Process((RPC,), "another", name="a", uid=1001)
    found, [note] = matched(monkeypatch, {5: real, 6: other}, one())
    assert not found and "several users (1000, 1001)" in note
    other = Process((RPC,), "another", name="b", uid=1001)
    assert matched(monkeypatch, {5: real, 6: other}, one()) == ({5: "a"}, [])


AT = "10.0.0.1"
HERE = ("127.0.0.1", AT)


@pytest.mark.parametrize("host", ["127.0.0.1", AT])
@pytest.mark.parametrize(
    "other",
    [
        Process(network="another", addresses=("127.0.0.1", "172.17.0.2"), uid=1001),
        Process(network="another", addresses=HERE, name="a", uid=1001),
        Process(network="another", addresses=HERE, name="a", uid=1001, host=AT),
        Process(network="ours", addresses=HERE, name="a", uid=1001, host="127.0.0.2"),
    ],
)
def test_nobody_takes_an_address_of_ours_from_who_listens_there(
    monkeypatch: pytest.MonkeyPatch, host: str, other: Process
) -> None:
    """Whatever another user's process is called, and has in a network of its own."""
    real = Process(network="ours", addresses=HERE, uid=120, host=host)
    assert matched(monkeypatch, {5: other, 6: real}, one(address=AT)) == ({6: "a"}, [])


def test_who_listens_at_the_very_address_goes_before_who_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Process((RPC,), "ours", HERE, uid=120, host=AT)
    other = Process(network="ours", addresses=HERE, name="a", uid=1001)
    assert matched(monkeypatch, {5: other, 6: real}, one(address=AT)) == ({6: "a"}, [])
    # Of one user's the name says more
    other = Process(network="another", name="a", uid=120)
    assert matched(monkeypatch, {5: other, 6: real}, one(address=AT)) == ({5: "a"}, [])


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "127.0.1.1", "::1"])
def test_nobody_has_a_place_for_a_loopback_address_of_ours(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """It is another one than that of a JobManager in a container, which was named by its port."""
    real = Process(network="container", addresses=("127.0.0.1", "172.17.0.2"), uid=120)
    for host in ("127.0.0.1", "127.0.1.1"):
        other = Process(network="ours", name="a", uid=1001, host=host)
        found, [note] = matched(monkeypatch, {5: real, 6: other}, one(address=address))
        assert not found and "several users (1001, 120)" in note
