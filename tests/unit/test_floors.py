"""Who may import whom: the floors of the house, and what never crosses a door."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import sched_ctl
from sched_ctl import drivers, pipeline, policies, sim

# From the ground up. A package imports what lies below it, and the others on its floor never.
FLOORS = (
    ("errors", "runfolder"),
    ("show",),
    ("kernel",),
    ("model", "workloads"),
    ("metrics", "probes", "lab"),
    ("drivers",),
    ("plugins",),
    ("adapt", "decide", "policies", "config"),
    ("backends", "engines", "sim", "telemetry"),
    ("controller",),
    ("service",),
    ("demo", "pipeline"),
    ("cli",),
    ("start",),
)
# Below, and still closed: what is pure stays pure, what reads does not write.
NEVER = {
    "kernel": {"show"},
    "model": {"kernel", "show"},
    "workloads": {"kernel", "show"},
    "metrics": {"kernel", "workloads", "show"},
    "decide": {"backends", "kernel", "drivers", "plugins", "show"},
    "adapt": {"kernel", "drivers", "plugins", "config", "show"},
    "policies": {"backends", "kernel", "drivers", "show"},
    "drivers": {"backends", "metrics", "show"},
    "backends": {"drivers", "plugins", "decide", "policies", "config", "show"},
    "engines": {"decide", "policies", "plugins", "show"},
    "controller": {"show"},
    "telemetry": {"backends", "kernel", "show"},
    "pipeline": {
        *("backends", "controller", "drivers", "engines"),
        *("kernel", "probes", "service", "show"),
    },
    "sim": {"backends", "kernel", "drivers", "probes", "config", "show"},
}
FOLDERS = {
    "": Path(sched_ctl.__file__).parent,
    "drivers": Path(drivers.__file__).parent,
    "pipeline": Path(pipeline.__file__).parent,
    "policies": Path(policies.__file__).parent,
    "sim": Path(sim.__file__).parent,
}
FLOOR = {package: number for number, floor in enumerate(FLOORS) for package in floor}


def modules() -> Iterator[tuple[str, Path]]:
    """All modules as they are imported, with the files that they are imported from."""
    for package, folder in FOLDERS.items():
        for file in sorted(folder.rglob("*.py")):
            parts = [package, *file.relative_to(folder).with_suffix("").parts]
            yield ".".join(part for part in parts if part and part != "__init__"), file


@cache
def imports(file: Path) -> tuple[str, ...]:
    """Modules of ours that a file imports, whenever it does; those for types alone do not count."""
    return tuple(_imports(file))


def _imports(file: Path) -> Iterator[str]:
    tree = ast.parse(file.read_text())
    for_types = {
        node
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and ast.unparse(test.test).endswith("TYPE_CHECKING")
        for node in ast.walk(test)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("sched_ctl."))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            if node.module == "sched_ctl":
                yield from (f"sched_ctl.{a.name}" for a in node.names if a.name[0] != "_")
            elif node.module and node.module.startswith("sched_ctl."):
                yield from (f"{node.module}.{a.name}" for a in node.names)


def arrows() -> Iterator[tuple[str, str, str]]:
    """(package, package that it imports, where)."""
    for name, file in modules():
        package = name.split(".")[0]
        for imported in imports(file):
            other = imported.split(".")[1]
            if package and other != package:
                yield package, other, f"{file.name} imports {imported}"


def test_every_package_has_a_floor() -> None:
    found = {name.split(".")[0] for name, _ in modules()} - {""}
    assert found == FLOOR.keys()


def test_nothing_imports_upward() -> None:
    assert [at for one, other, at in arrows() if FLOOR[one] <= FLOOR[other]] == []


@pytest.mark.parametrize("package", NEVER)
def test_closed_doors(package: str) -> None:
    assert [at for one, other, at in arrows() if one == package and other in NEVER[package]] == []


def test_no_circle_inside_a_package() -> None:
    known = dict(modules())
    needs: dict[str, set[str]] = {}
    for name, file in known.items():
        found = {i.removeprefix("sched_ctl.") for i in imports(file)}
        found = {i if i in known else i.rpartition(".")[0] for i in found}
        needs[name] = (found & known.keys()) - {"", name}
    while free := [name for name, left in needs.items() if not left & needs.keys()]:
        for name in free:
            del needs[name]
    assert needs == {}
