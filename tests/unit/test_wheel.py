"""What is in the wheel."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OTHERS = shutil.ignore_patterns(".*", "build", "bin", "*.egg-info", "__pycache__")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy of the sources, so that no earlier build helps."""
    sources = tmp_path_factory.mktemp("wheel") / "sources"
    shutil.copytree(ROOT, sources, ignore=OTHERS)
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", sources.parent, sources],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = sources.parent.glob("*.whl")
    assert path.name.startswith("sched_ctl-") and "-py3-none-linux_" in path.name
    assert path.stat().st_size < 2 << 20
    return zipfile.ZipFile(path)


@pytest.mark.needs("cc")
def test_all_parts_are_in(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {"sched_ctl/py.typed", "sched_ctl/bin/labspe", "sched_ctl/bin/libsched_sim.so"} <= names
    if shutil.which("clang-19") or shutil.which("clang"):
        assert "sched_ctl/bin/sched_ctl.bpf.o" in names
    for graph in (ROOT / "bench" / "workloads").glob("*.graph"):
        assert f"sched_ctl/bin/workloads/{graph.name}" in names
    for folder, package in (("ctl", ""), ("policies", "policies/"), ("drivers", "drivers/")):
        for source in (ROOT / folder).rglob("*.py"):
            assert f"sched_ctl/{package}{source.relative_to(ROOT / folder)}" in names
    # The engine must still be a program after pip has unpacked it.
    assert wheel.getinfo("sched_ctl/bin/labspe").external_attr >> 16 & 0o111
