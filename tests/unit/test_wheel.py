"""What is in the source distribution, and in the wheel that is built from it."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from sched_ctl import __version__

ROOT = Path(__file__).parents[2]
OTHERS = shutil.ignore_patterns(".*", "*build", "*bin", "*.egg-info", "__pycache__")
BUILT = ("labspe", "libsched_sim.so", ".o")
SDIST = "import sys, setuptools.build_meta as b; b.build_sdist(sys.argv[1])"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made from a copy of the sources in which everything was built."""
    sources = tmp_path_factory.mktemp("sdist") / "sources"
    shutil.copytree(ROOT, sources, ignore=OTHERS)
    for place in ("ctl/bin/labspe", "ctl/bin/libsched_sim.so", "ctl/bin/sched_ctl.bpf.o"):
        (sources / place).parent.mkdir(exist_ok=True)
        (sources / place).write_text("of another machine")
    for place in ("engine/build/main.o", "bpf/build/vmlinux.h"):
        (sources / place).parent.mkdir()
        (sources / place).touch()
    subprocess.run(
        [sys.executable, "-c", SDIST, str(sources.parent)],
        cwd=sources,
        check=True,
        capture_output=True,
    )
    [path] = sources.parent.glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> zipfile.ZipFile:
    """Built from the source distribution, so that no earlier build helps."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q"),
            *("--no-deps", "--no-build-isolation", "-w", sdist.parent, sdist),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [path] = sdist.parent.glob("*.whl")
    assert path.name.startswith(f"sched_ctl-{__version__}-py3-none-linux_")
    assert path.stat().st_size < 2 << 20
    return zipfile.ZipFile(path)


def test_nothing_built_is_in_the_source_distribution(sdist: Path) -> None:
    with tarfile.open(sdist) as packed:
        names = [name.partition("/")[2] for name in packed.getnames()]
    assert {"ctl/__init__.py", "engine/main.c", "bpf/sched_ctl.bpf.c", "setup.py"} <= {*names}
    assert not [name for name in names if name.endswith(BUILT) or "/build/" in name]


@pytest.mark.needs("cc")
def test_all_parts_are_in(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {"sched_ctl/py.typed", "sched_ctl/bin/labspe", "sched_ctl/bin/libsched_sim.so"} <= names
    if shutil.which("clang-19") or shutil.which("clang"):
        assert {"sched_ctl/bin/sched_ctl.bpf.o", "sched_ctl/bin/trace.bpf.o"} <= names
    for graph in (ROOT / "bench" / "workloads").glob("*.graph"):
        assert f"sched_ctl/bin/workloads/{graph.name}" in names
    for folder, package in (("ctl", ""), ("policies", "policies/"), ("drivers", "drivers/")):
        for source in (ROOT / folder).rglob("*.py"):
            assert f"sched_ctl/{package}{source.relative_to(ROOT / folder)}" in names
    shared = {name.partition(".data/data/share/")[2] for name in names}
    assert {"man/man1/sched-ctl.1", "man/man1/sched-ctl-load.1"} <= shared
    assert {
        "bash-completion/completions/sched-ctl",
        "zsh/site-functions/_sched-ctl",
        "fish/vendor_completions.d/sched-ctl.fish",
    } <= shared
    # The engine must still be a program after pip has unpacked it.
    assert wheel.getinfo("sched_ctl/bin/labspe").external_attr >> 16 & 0o111


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Without the parts that take a C compiler."""
    path = tmp_path / "sources"
    shutil.copytree(ROOT, path, ignore=OTHERS)
    for part in ("engine", "sim"):
        (path / part / "Makefile").unlink()
    for compiler in ("clang-19", "clang"):  # no header is there for it
        (tmp_path / compiler).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / compiler).chmod(0o755)
    return path


def built(sources: Path) -> tuple[set[str], str]:
    """Modules in the folder that a wheel is made from, and what was said."""
    done = subprocess.run(
        [sys.executable, "setup.py", "build_py", "--build-lib", "made"],
        cwd=sources,
        env=os.environ | {"PATH": f"{sources.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    made = sources / "made" / "sched_ctl"
    return {str(path.relative_to(made)) for path in made.rglob("*.py")}, done.stdout + done.stderr


def test_clang_without_the_header_of_libbpf_is_no_error(sources: Path) -> None:
    modules, said = built(sources)
    assert "__init__.py" in modules
    assert "bpf/ is left out: clang-19 does not find <bpf/bpf_core_read.h>" in said


def test_a_policy_that_has_gone_is_not_built_again(sources: Path) -> None:
    assert "policies/qs.py" in built(sources)[0]
    (sources / "policies" / "qs.py").unlink()
    modules, _ = built(sources)
    assert "policies/hr.py" in modules
    assert "policies/qs.py" not in modules
