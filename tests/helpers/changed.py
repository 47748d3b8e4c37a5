"""Which unit tests what was changed concerns: for `./dev check`.

Those that import a changed module themselves or through a helper in `tests/`, those that were
changed, and those that name a changed file. What is further away is for `./dev test --quick`.
"""

import ast
import functools
import subprocess
import tomllib
from contextlib import suppress
from pathlib import Path, PurePath

__all__ = ["GitError", "changed_files", "concerned", "unit_tests"]

# What is built from these folders is used through one module.
NATIVE = {
    "sim": "sched_ctl.sim",
    "engine": "sched_ctl.lab.engine",
    "bpf": "sched_ctl.kernel.scheduler",
}
# What lies in these folders is found by these tests, which import none of it by name.
FOUND = {"policies": ("test_policies.py", "test_registry.py"), "drivers": ("test_registry.py",)}
EVERYTHING = ("tests/conftest.py", "pyproject.toml")
ALWAYS = ("test_style.py", "test_floors.py", "test_docs.py")  # of all files


class GitError(Exception):
    """Git does not tell what differs; the text says why."""


def changed_files(root: Path) -> list[str]:
    """Files that differ from where this branch left main, new ones included. Raises GitError."""
    listed = _git(root, "diff", "--name-only", *_base(root))
    return [*listed, *_git(root, "ls-files", "--others", "--exclude-standard")]


def _base(root: Path) -> list[str]:
    """The commit in which this branch left main; on main itself, what it had at origin."""
    head = _git(root, "rev-parse", "HEAD")
    for main in ("main", "origin/main"):
        with suppress(GitError):  # not every clone has both
            if (base := _git(root, "merge-base", "HEAD", main)) != head:
                return base
    return head


def _git(root: Path, *arguments: str) -> list[str]:
    try:
        done = subprocess.run(
            ["git", "-C", root, *arguments], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise GitError(f"cannot run git: {error.strerror}") from error
    if done.returncode != 0:
        raise GitError(done.stderr.strip())
    return done.stdout.splitlines()


def unit_tests(root: Path) -> set[Path]:
    return set((root / "tests" / "unit").glob("test_*.py"))


def concerned(root: Path, changed: list[str]) -> set[Path]:
    """Files of unit tests."""
    tests = unit_tests(root)
    if any(name in EVERYTHING for name in changed):
        return tests
    modules = {_module(root, name) for name in changed}
    for helper in sorted((root / "tests" / "helpers").glob("*.py")):
        if modules & _imported(helper):
            modules.add(helper.stem)
    names = {PurePath(name).name for name in changed}
    finding = {test for name in changed for test in FOUND.get(name.partition("/")[0], ())}
    return {
        test
        for test in tests
        if test.name in ALWAYS
        or test.name in finding
        or str(test.relative_to(root)) in changed
        or modules & _imported(test)
        or any(name in test.read_text() for name in names)
    }


def _module(root: Path, name: str) -> str:
    """The module that a file is, or is built into; empty: none."""
    path = PurePath(name)
    if path.suffix != ".py":
        return NATIVE.get(path.parts[0], "")
    folders = {"tests": "", "vagrant": "", "bench": "bench"}
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders |= {folder: package for package, folder in settings["package-dir"].items()}
    if path.parts[:2] == ("tests", "helpers"):
        return path.stem
    rest = path.relative_to(path.parts[0]).with_suffix("").parts
    package = folders.get(path.parts[0], "")
    return ".".join(filter(None, (package, *rest))).removesuffix(".__init__")


@functools.cache
def _imported(file: Path) -> set[str]:
    """Modules, and what is taken from them, which may be modules too."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found
