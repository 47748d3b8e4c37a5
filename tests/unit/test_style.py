"""The linters and the type checker are part of the tests."""

import ast
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


MOST_LINES = 60  # of a function, without its head and its docstring
# Those that are longer, and why.
LONG = {
    "bench/guest/flink_inside.py:run": "one scenario, told in the order in which it happens",
    "bench/papers/__main__.py:found": "a list of the papers' figures",
    "bench/papers/report.py:_pictures": "a list of pictures",
    "ctl/decide/decision.py:decide": "the stages of a decision, one after the other",
    "drivers/lab/driver.py:_topology": "a file's tables, each with what may be wrong in it",
    "drivers/storm/plan.py:plan": "sums over streams that only make sense together",
    "pipeline/generate.py:_files": "a record's fields, one after the other",
    "sim/run.py:_values": "the simulator's arguments, one after the other",
    "tests/engines/test_flink_driver.py:test_topology_fusion_and_threads": "one start of Flink",
    "tests/spark/application.py:main": "runs in Spark's own process, where nothing is imported",
}


def run(*command: str, **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def import_tree() -> Path:
    """The folders as the package that they are installed as, in links.

    The type checker does not follow the import hook of an editable install.
    """
    tree = ROOT / "build" / "typecheck" / "sched_ctl"
    shutil.rmtree(tree, ignore_errors=True)
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    for package, folder in folders["package-dir"].items():
        below = tree.joinpath(*package.split(".")[1:])
        for source in sorted((*(ROOT / folder).rglob("*.py"), *(ROOT / folder).glob("py.typed"))):
            link = below / source.relative_to(ROOT / folder)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(source)
    return tree.parent


def test_lint() -> None:
    run("ruff", "check", ".")


def test_format() -> None:
    run("ruff", "format", "--check", ".")


def test_functions_are_short() -> None:
    """A longer one is named with a reason; a reason that is not needed any more goes."""
    long = set()
    for file in sorted(ROOT.rglob("*.py")):
        name = file.relative_to(ROOT)
        if name.parts[0].startswith(".") or name.parts[0] in ("build", "dist"):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                told = ast.get_docstring(node, clean=False) is not None
                body = node.body[1:] if told else node.body
                if body and (body[-1].end_lineno or 0) - body[0].lineno >= MOST_LINES:
                    long.add(f"{name}:{node.name}")
    assert long == LONG.keys()


@pytest.mark.needs("clang")
def test_a_header_of_bpf_includes_what_it_uses() -> None:
    """A function that is only declared in one is defined by whoever includes it."""
    clang = shutil.which("clang-19") or "clang"
    kind = {"x86_64": "x86", "aarch64": "arm64"}.get(platform.machine(), "x86")
    system = f"-isystem/usr/include/{platform.machine()}-linux-gnu"
    quiet = ["-Wno-unused-function", "-Wno-undefined-internal"]
    command = [clang, "-target", "bpf", "-mcpu=v3", "-g", "-fsyntax-only", *quiet, system]
    for header in sorted((ROOT / "bpf").glob("*.bpf.h")):
        done = subprocess.run(
            [*command, f"-D__TARGET_ARCH_{kind}", f"-I{ROOT / 'bpf'}", "-x", "c", "-"],
            input=f'#include "{header.name}"\n',
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{header.name}: {done.stderr}"


def test_no_two_test_files_have_one_name() -> None:
    """pytest imports them by their base names, and would refuse the second one."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


@pytest.mark.timeout(1200)  # where others compute
def test_types() -> None:
    """All in one run, which reads what they have in common once."""
    tree = import_tree()
    folders = [name for name in ("tests", "bench", "vagrant") if any((ROOT / name).rglob("*.py"))]
    path = ":".join(
        map(str, (tree, *(ROOT / name for name in ("tests/helpers", "tests", "vagrant"))))
    )
    run("mypy", str(tree / "sched_ctl"), *folders, MYPYPATH=path)
