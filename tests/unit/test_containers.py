"""Pods and containers of processes, by what root alone can have written."""

import asyncio
import os
from pathlib import Path

import pytest
from fakes import FakeEngine, sleeping_threads

from sched_ctl.drivers import Target
from sched_ctl.engines.engine import Engine
from sched_ctl.engines.owners import COMMON, Owners, belonging, called
from sched_ctl.kernel import cgroup, containers, procfs
from sched_ctl.kernel.containers import Container
from sched_ctl.model.patterns import engine_fits, fits, names_of

UID = "0f7c6f1e-9d0a-4c57-8d3e-5a1b2c3d4e5f"
ID, OTHER_ID = "ab" * 32, "cd" * 32
POD = f"pod{UID}"
SLICE = f"kubepods-burstable-{POD.replace('-', '_')}.slice"


class Machine:
    """Recorded folders of a node, and one process."""

    def __init__(self, root: Path) -> None:
        self.root, self.path = root, "/"
        self.groups, self.log = root / "cgroup", root / "log"
        for folder in (self.groups, self.log / "pods", self.log / "containers", root / "podman"):
            folder.mkdir(parents=True)

    def runs_in(self, path: str) -> None:
        self.path = path
        (self.groups / path.strip("/")).mkdir(parents=True, exist_ok=True)

    def logs(self, pod: str, *names: str) -> None:
        for name in names:
            (self.log / "pods" / pod / name).mkdir(parents=True)

    def found(self) -> Container | None:
        return containers.of(os.getpid())


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    tmp_path.chmod(0o755)
    made = Machine(tmp_path)
    tree = cgroup.Hierarchy(2, made.groups)
    monkeypatch.setattr(cgroup, "hierarchies", lambda: (tree,))
    real = procfs.text

    def text(path: str | Path, limit: int = -1) -> str:
        return f"0::{made.path}\n" if str(path).endswith("/cgroup") else real(path, limit)

    monkeypatch.setattr(procfs, "text", text)
    monkeypatch.setattr(containers, "ROOT", os.getuid())
    monkeypatch.setattr(containers, "POD_LOGS", made.log / "pods")
    monkeypatch.setattr(containers, "CONTAINER_LOGS", made.log / "containers")
    monkeypatch.setattr(containers, "PODMAN", tmp_path / "podman")
    monkeypatch.setattr(containers, "DOCKER", tmp_path / "docker")
    return made


@pytest.mark.parametrize(
    "path",
    [
        f"/kubepods.slice/kubepods-burstable.slice/{SLICE}/cri-containerd-{ID}.scope",
        f"/kubepods.slice/kubepods-{POD.replace('-', '_')}.slice/crio-{ID}.scope/container",
        f"/kubepods/besteffort/{POD}/{ID}",
        f"/kubelet.slice/kubelet-kubepods.slice/kubelet-{SLICE}/cri-containerd-{ID}.scope",
    ],
)
def test_a_pod_by_its_cgroup_and_the_kubelets_folders(machine: Machine, path: str) -> None:
    machine.runs_in(path)
    machine.logs(f"ingest_etl-7d9_{UID}", "main", "sidecar")
    (machine.log / "containers" / f"etl-7d9_ingest_main-{ID}.log").touch()
    assert machine.found() == Container(ID, UID, "ingest", "etl-7d9", "main")
    assert containers.namespace_of(os.getpid()) == "ingest"


def test_a_pod_of_one_container_needs_no_more(machine: Machine) -> None:
    machine.runs_in(f"/kubepods/burstable/{POD}/{ID}")
    machine.logs(f"ingest_etl_{UID}", "main")
    assert machine.found() == Container(ID, UID, "ingest", "etl", "main")


def test_a_pod_that_nobody_names_is_alone(machine: Machine) -> None:
    machine.runs_in(f"/kubepods/burstable/{POD}/{ID}")
    found = machine.found()
    assert found == Container(ID, UID) and found.names == () and ID[:12] in found.told
    assert Owners(["pod:*"]).domain(0, found) == f"pod:{UID}"
    assert containers.namespace_of(os.getpid()) == UID and called(f"pod:{UID}") == f"pod {UID}"


@pytest.mark.parametrize(
    "path", [f"/docker/{ID}", f"/system.slice/docker-{ID}.scope/init.scope", f"/x/libpod-{ID}"]
)
def test_names_of_docker_and_podman(machine: Machine, path: str) -> None:
    machine.runs_in(path)
    assert machine.found() == Container(ID)
    kept = machine.root / "podman" / "overlay-containers" / "containers.json"
    kept.parent.mkdir()
    kept.write_text(f'[{{"id": "{OTHER_ID}", "names": ["x"]}}, {{"id": "{ID}", "names": ["web"]}}]')
    assert machine.found() == Container(ID, name="web")
    kept.unlink()
    kept = machine.root / "docker" / ID / "config.v2.json"
    kept.parent.mkdir(parents=True)
    kept.write_text('{"Name": "/web", "State": {"Running": true}}')
    assert machine.found() == Container(ID, name="web")
    kept.write_text('{"Name": "/web\\n; rm"}')
    assert machine.found() == Container(ID)
    kept.write_text("no json")
    assert machine.found() == Container(ID)


def test_a_process_in_no_container(machine: Machine) -> None:
    for path in ("/", "/user.slice", f"/user.slice/crio-conmon-{ID}.scope", "/pods/x"):
        machine.runs_in(path)
        assert machine.found() is None, path
        assert containers.namespace_of(os.getpid()) == ""


@pytest.mark.parametrize("below", ["\udcff", "x\udcff/y", "a (deleted)"])
def test_nobody_gets_out_of_his_pod_by_a_name(machine: Machine, below: str) -> None:
    """A cgroup may have a name that is no text, also below a pod's container."""
    machine.path = f"/kubepods/burstable/{POD}/{ID}/{below}"
    (machine.groups / f"kubepods/burstable/{POD}/{ID}").mkdir(parents=True)
    assert machine.found() == Container(ID, UID)
    assert containers.namespace_of(os.getpid()) == UID


def test_what_a_user_calls_his_own_cgroup_is_no_pod(machine: Machine) -> None:
    """Also below a container's own: what is made in there is its root's word."""
    machine.logs(f"ingest_etl_{UID}", "main")
    his = machine.groups / "user@1000.service"
    machine.runs_in(f"/user@1000.service/kubepods/{POD}/{ID}")
    assert machine.found() is not None
    his.chmod(0o777)
    assert machine.found() is None
    machine.runs_in(f"/docker/{OTHER_ID}/kubepods/{POD}/{ID}")
    assert machine.found() == Container(OTHER_ID)


@pytest.mark.needs("root")
def test_what_is_not_roots_names_nobody(machine: Machine) -> None:
    machine.runs_in(f"/kubepods/burstable/{POD}/{ID}")
    machine.logs(f"ingest_etl_{UID}", "main")
    pod = machine.log / "pods" / f"ingest_etl_{UID}"
    os.chown(pod, 1000, 1000)
    assert machine.found() == Container(ID, UID)
    pod.rename(machine.root / "away")
    os.chown(machine.root / "away", 0, 0)
    pod.symlink_to(machine.root / "away")
    assert machine.found() == Container(ID, UID)
    os.chown(machine.groups / "kubepods", 1000, 1000)
    assert machine.found() is None
    kept = machine.root / "docker" / ID / "config.v2.json"
    kept.parent.mkdir(parents=True)
    kept.write_text('{"Name": "/web"}')
    machine.runs_in(f"/docker/{ID}")
    assert machine.found() == Container(ID, name="web")
    os.chown(kept, 1000, 1000)
    assert machine.found() == Container(ID)


def test_hostile_names_are_none(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.runs_in(f"/kubepods/burstable/{POD}/{ID}")
    for name in (f"ingest_etl\n_{UID}", f"ing\x1best_etl_{UID}", f"A_b_{UID}", f"a_b_c_{UID}"):
        machine.logs(name, "main")
    assert machine.found() == Container(ID, UID)
    machine.logs(f"ingest_etl_{UID}", "main\n")
    assert machine.found() == Container(ID, UID, "ingest", "etl")
    machine.logs(f"other_etl_{UID}", "main")  # two who claim one uid: neither
    assert machine.found() == Container(ID, UID)
    machine.runs_in(f"/docker/{ID}")
    kept = machine.root / "docker" / ID / "config.v2.json"
    kept.parent.mkdir(parents=True)
    kept.write_text('{"Name": "/web"}' + " " * 100)
    monkeypatch.setattr(containers, "MOST_BYTES", 50)
    assert machine.found() == Container(ID)
    kept.unlink()
    os.mkfifo(kept)
    assert machine.found() == Container(ID)
    for path in (f"/docker/{ID}x", "/\udcff", "/" + "x" * 5000, "/../" + ID):
        machine.path = path
        assert machine.found() is None


def test_an_engine_is_meant_by_where_it_runs(machine: Machine) -> None:
    machine.runs_in(f"/kubepods/burstable/{POD}/{ID}")
    machine.logs(f"ingest_etl-1_{UID}", "main")
    engine = Engine(Target("fake", "a", os.getpid()), FakeEngine.kind(FakeEngine())["fake"], 1.0)
    names = names_of("fake:a", "q")
    for pattern in ("pod:ingest/*", "pod:ingest/etl-1", "pod:ingest/etl-1/main:q", "q", "fake:q"):
        assert fits((pattern,), *names), pattern
    assert engine_fits(("pod:ingest/*",), "fake:a") and not engine_fits(("pod:x/*",), "fake:a")
    assert not fits(("pod:ingest/*",), *names_of("fake:b", "pod:ingest/etl-1"))
    assert engine.domain == "pod:ingest" and "namespace ingest's own alone" in engine.ordered
    engine.owners = Owners(["pod:ingest/*"])
    assert engine.domain == COMMON and "with all" in engine.ordered
    engine.close()
    assert not fits(("pod:*",), *names_of("fake:a", "q"))


def test_an_engine_whose_process_nobody_knows_is_where_its_threads_are(machine: Machine) -> None:
    machine.runs_in(f"/kubepods/burstable/{POD}/{ID}")
    machine.logs(f"ingest_etl_{UID}", "main")

    async def ask(target: Target) -> tuple[str, int]:
        fake = FakeEngine(queries={"q": 2}, threads=sleeping_threads(2))
        fake.target = target
        engine = Engine(target, FakeEngine.kind(fake)["fake"], 1.0)
        await asyncio.wait_for(engine.ask(0.0, 1.0) or asyncio.sleep(0), 10)
        snapshot = engine.snapshot
        assert snapshot is not None
        engine.close()
        return engine.namespace, sum(len(o.threads) for o in snapshot.topology.operators)

    for target in (
        Target("fake", "a"),
        Target("fake", "a", uid=os.getuid()),
        Target("fake", f"127.0.0.1:1@{os.getpid()}", uid=os.getuid()),
    ):
        assert asyncio.run(ask(target)) == ("ingest", 2)


def test_threads_of_other_namespaces_are_left_out() -> None:
    whole = FakeEngine(queries={"q": 2}, threads=sleeping_threads(2)).topology

    def kept(mine: str, theirs: str) -> int:
        found = belonging(whole, os.getuid(), namespace=mine, namespace_of=lambda pid: theirs)
        assert found is whole or theirs in found.notes[0]
        return sum(len(operator.threads) for operator in found.operators)

    assert kept("ingest", "ingest") == 2
    assert kept("ingest", "other") == kept("ingest", "") == kept("", "ingest") == 0
