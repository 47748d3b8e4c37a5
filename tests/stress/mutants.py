"""Changes one thing at a time in what decides and computes, and looks whether a unit test notices.

    ./dev run python -m stress.mutants [--sample N] [--seed N] [--least SHARE] [FILE ...]

Each mutant is one function with one comparison, operator, number, condition or name changed. It
runs in a forked child, in the place of the original, and meets the tests that reached its line, the
quickest first. A mutant that no test notices is printed, unless `mutants.toml` says why it is no
fault. The exit code is 1 where fewer than `--least` of the others were noticed.

Tests that need longer than `SLOW_S`, and those that start a process, do not count.
"""

import argparse
import ast
import builtins
import copy
import gc
import os
import pickle
import random
import resource
import signal
import sys
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

__all__ = ["Mutant", "mutants_of", "no_faults"]

ROOT = Path(__file__).parents[2]
TARGETS = (
    "ctl/decide",
    "ctl/metrics",
    "ctl/model",
    "policies",
    "ctl/backends/scx/hints.py",
    "ctl/backends/scx/weight.py",
    "ctl/backends/cgroups/wanted.py",
)
TESTS = (
    *("averages", "branches", "by_query", "chain", "clean", "config", "effects", "extending"),
    *("floor", "formulas", "frames", "graph", "guard", "held", "hints", "kernel_driver"),
    *("lock_bound", "metrics", "nice_levels", "normalise", "orders", "parallelism", "patterns"),
    *("policies", "profiles", "programs", "realtime", "record", "registry", "scheduling", "settle"),
    *("slots", "spark_driver", "switches", "targets", "verdicts", "verdicts_one_by_one"),
    *("levels_one_by_one", "orders_one_by_one", "targets_one_by_one", "wanted", "weight"),
)
NO_FAULTS = Path(__file__).with_name("mutants.toml")
SLOW_S = 0.2  # of CPU time
REACHED = "a_test_reached"  # what marked functions call, with a file and a line
FunctionKey = tuple[str, str, int]  # file, qualified name, first line

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
OTHER_NAME = {"min": "max", "max": "min", "any": "all", "all": "any"} | {
    "minimum": "maximum",
    "maximum": "minimum",
    "fmin": "fmax",
    "fmax": "fmin",
    "nanmin": "nanmax",
    "nanmax": "nanmin",
}


@dataclass(frozen=True)
class Mutant:
    """line: of what was changed. function: where it is, as (file, qualified name, first line)."""

    function: FunctionKey
    line: int
    before: str
    after: str
    code: CodeType

    def __str__(self) -> str:
        file, name, _ = self.function
        return f"{file}:{self.line} {name}: {self.before}  ->  {self.after}"

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What it is called in `mutants.toml`: lines move."""
        return *self.function[:2], self.before, self.after


def mutants_of(name: str, source: str) -> Iterator[Mutant]:
    """All of a file. name: below the root."""
    tree = ast.parse(source)
    for function, key, alone in _each(name, tree):
        for node in _inside(function):
            for other in _changed(node):
                before, kept = ast.unparse(node), dict(vars(node))
                node.__dict__.update(vars(other))
                try:
                    found = _compiled(key, alone)
                    after = ast.unparse(node)
                finally:
                    node.__dict__.clear()
                    node.__dict__.update(kept)
                if found is not None:
                    yield Mutant(key, node.lineno, before, after, found)


def marked(
    name: str, source: str, wanted: Mapping[FunctionKey, Collection[int]]
) -> Iterator[tuple[FunctionKey, CodeType]]:
    """These functions of a file, with a call of `REACHED` before what is on one of their lines.

    To follow a test's lines from outside takes three times as long as the test.
    """
    tree = ast.parse(source)
    for function, key, alone in _each(name, tree):
        if key in wanted:
            for node in [*ast.walk(function)]:
                for body in ("body", "orelse", "finalbody"):
                    if isinstance(statements := getattr(node, body, None), list):
                        setattr(node, body, _told(name, statements, wanted[key]))
            ast.fix_missing_locations(function)
            if (code := _compiled(key, alone)) is not None:
                yield key, code


def _told(name: str, statements: Sequence[ast.stmt], wanted: Collection[int]) -> list[ast.stmt]:
    made: list[ast.stmt] = []
    for statement in statements:
        inner = getattr(statement, "body", None) or getattr(statement, "cases", None)
        last = statement.end_lineno or statement.lineno
        if inner:  # what it decides by, each statement inside tells of itself
            first = inner[0].pattern if isinstance(inner[0], ast.match_case) else inner[0]
            last = max(statement.lineno, first.lineno - 1)
        for line in sorted({*range(statement.lineno, last + 1)} & {*wanted}):
            call = ast.parse(f"{REACHED}(({name!r}, {line}))").body[0]
            made.append(ast.copy_location(call, statement))
        made.append(statement)
    return made


def _each(name: str, tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, FunctionKey, ast.Module]]:
    """Functions of a file, each with its name and a module of it alone."""
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    for function, qualified in _functions(tree, ""):
        first = min([function.lineno, *(node.lineno for node in function.decorator_list)])
        yield function, (name, qualified, first), _alone(function, qualified, imports)


def _compiled(key: FunctionKey, alone: ast.Module) -> CodeType | None:
    name, qualified, first = key
    code = compile(alone, str(ROOT / name), "exec", dont_inherit=True)
    return _code_of(code, qualified, first)


def _functions(tree: ast.AST, inside: str) -> Iterator[tuple[ast.FunctionDef, str]]:
    """Functions and methods; those within a function belong to it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield node, inside + node.name
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{inside}{node.name}.")


def _alone(function: ast.FunctionDef, qualified: str, imports: Sequence[ast.stmt]) -> ast.Module:
    """A module of this function alone, in its classes: a whole one takes long to compile."""
    inner: ast.stmt = function
    for name in reversed(qualified.split(".")[:-1]):
        inner = ast.ClassDef(name, bases=[], keywords=[], body=[inner], decorator_list=[])
    return ast.fix_missing_locations(ast.Module([*imports, inner], type_ignores=[]))


def _inside(function: ast.AST) -> Iterator[Any]:
    """Nodes that compute something: no annotation, no default value, no text of an error."""
    if isinstance(function, ast.keyword) and function.arg == "strict":
        return  # of zip: for the case that we are wrong
    for name, value in ast.iter_fields(function):
        if name in ("annotation", "returns", "decorator_list", "exc", "msg") or isinstance(
            value, ast.arguments
        ):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST):
                yield node
                yield from _inside(node)


def _changed(node: ast.AST) -> Iterator[ast.AST]:
    """What it could be instead, one change each; of the same kind, as it takes its place."""
    new = copy.copy(node)
    match node:
        case ast.Compare(ops=[op]):
            new.ops = [SWAPPED[type(op)]()]  # type: ignore[attr-defined]
            yield new
        case ast.BoolOp() | ast.BinOp() | ast.AugAssign() if type(node.op) in SWAPPED:
            new.op = SWAPPED[type(node.op)]()  # type: ignore[attr-defined]
            yield new
        case ast.UnaryOp(op=ast.USub()):
            new.op = ast.UAdd()  # type: ignore[attr-defined]
            yield new
        case ast.Constant(value=bool() as value):
            new.value = not value  # type: ignore[attr-defined]
            yield new
        case ast.Constant(value=int() | float() as number):
            new.value = number + 1 if abs(number) < 100 else 2 * number  # type: ignore[attr-defined]
            yield new
        case ast.Name(id=name) if name in OTHER_NAME and isinstance(node.ctx, ast.Load):
            new.id = OTHER_NAME[name]  # type: ignore[attr-defined]
            yield new
        case ast.Attribute(attr=name) if name in OTHER_NAME:
            new.attr = OTHER_NAME[name]  # type: ignore[attr-defined]
            yield new
        case ast.If(test=test) | ast.IfExp(test=test) if not isinstance(test, ast.Compare):
            new.test = ast.copy_location(ast.UnaryOp(ast.Not(), test), test)  # type: ignore[attr-defined]
            yield ast.fix_missing_locations(new)


def _code_of(code: CodeType, qualified: str, first: int) -> CodeType | None:
    for part in code.co_consts:
        if isinstance(part, CodeType):
            if part.co_qualname == qualified and part.co_firstlineno == first:
                return part
            if (found := _code_of(part, qualified, first)) is not None:
                return found
    return None


@dataclass
class Reached:
    """What the tests did: seconds of each that passed, and the lines of the targets it ran."""

    seconds: dict[str, float]
    lines: dict[tuple[str, int], list[str]]


class Hunt:
    """A plugin of pytest: in the place of a run of the tests, one of each mutant."""

    def __init__(self, mutants: Sequence[Mutant], progress: bool) -> None:
        self.mutants, self.progress = mutants, progress
        self.failed = False
        self.survived: list[Mutant] = []
        self.untested: list[Mutant] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed = self.failed or report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        reached = self._reached(list(items.values()))
        functions = self._functions()
        for number, mutant in enumerate(self.mutants):
            names = reached.lines.get((mutant.function[0], mutant.line), [])
            tests = [items[name] for name in sorted(names, key=reached.seconds.__getitem__)]
            limit_s = 2 + 5 * sum(reached.seconds[name] for name in names)
            if not tests:
                self.untested.append(mutant)
            elif self._passes(mutant, functions[mutant.function], tests, limit_s):
                self.survived.append(mutant)
            if self.progress and number % 100 == 99:
                left = len(self.survived) + len(self.untested)
                print(f"{number + 1}, not noticed {left}", file=sys.__stderr__)
        return True

    def _functions(self) -> dict[FunctionKey, list[FunctionType]]:
        """What to replace, wherever it is held: decorated ones are behind what they became."""
        found = defaultdict(list)
        for thing in gc.get_objects():
            if isinstance(thing, FunctionType):
                code = thing.__code__
                file = code.co_filename.removeprefix(f"{ROOT}/")
                found[file, code.co_qualname, code.co_firstlineno].append(thing)
        return found

    def _passes(
        self,
        mutant: Mutant,
        functions: Sequence[FunctionType],
        tests: Sequence[pytest.Item],
        limit_s: float,
    ) -> bool:
        child = os.fork()
        if child == 0:
            _silent(limit_s)
            for function in functions:
                function.__code__ = mutant.code
            os._exit(0 if all(self._one(test) for test in tests) else 1)
        return os.waitpid(child, 0)[1] == 0

    def _one(self, item: pytest.Item) -> bool:
        self.failed = False
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return not self.failed

    def _reached(self, items: Sequence[pytest.Item]) -> Reached:
        """In a child, so that nothing is remembered that a mutant would not do."""
        reading, writing = os.pipe()
        if os.fork() == 0:
            _silent(600)
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(self._marked(items), pipe)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            reached: Reached = pickle.load(pipe)
        os.wait()
        return reached

    def _marked(self, items: Sequence[pytest.Item]) -> Reached:
        lines: set[tuple[str, int]] = set()
        setattr(builtins, REACHED, lines.add)
        functions = self._functions()
        for key, code in self._marks():
            for function in functions[key]:
                function.__code__ = code
        signal.signal(signal.SIGPROF, _too_slow)
        reached = Reached({}, defaultdict(list))
        slow: set[str] = set()  # functions, whatever they are called with
        for item in items:
            name = item.nodeid.partition("[")[0]
            if name in slow:
                continue
            lines.clear()
            began_s = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, SLOW_S)
            passed = self._one(item)
            signal.setitimer(signal.ITIMER_PROF, 0)
            took_s = time.process_time() - began_s
            if passed and took_s < SLOW_S:
                reached.seconds[item.nodeid] = took_s
                for place in lines:
                    reached.lines[place].append(item.nodeid)
            else:
                slow.add(name)
        return reached

    def _marks(self) -> Iterator[tuple[FunctionKey, CodeType]]:
        """Of each function with mutants, itself, telling which of their lines it reaches."""
        wanted: dict[str, dict[FunctionKey, set[int]]] = defaultdict(lambda: defaultdict(set))
        for mutant in self.mutants:
            wanted[mutant.function[0]][mutant.function].add(mutant.line)
        for name, of in wanted.items():
            yield from marked(name, (ROOT / name).read_text(), of)


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise TimeoutError


def _silent(limit_s: float) -> None:
    """Of a child: what it says is not shown, and it ends by itself. limit_s: of CPU time."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(nothing, descriptor)
    used_s = int(time.process_time() + limit_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (used_s, used_s))
    signal.alarm(int(10 * limit_s) + 60)


def no_faults() -> set[tuple[str, str, str, str]]:
    """By name; of two alike in one function both."""
    listed = tomllib.loads(NO_FAULTS.read_text()).get("mutant", [])
    return {(row["file"], row["function"], row["before"], row["after"]) for row in listed}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("files", nargs="*", metavar="FILE", help="only of these; default: all")
    parser.add_argument("--sample", type=int, default=0, help="so many by chance; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", nargs="+", default=TESTS, help="only these, as in TESTS")
    parser.add_argument("--least", type=float, default=0.9, help="share that is to be noticed")
    arguments = parser.parse_args()
    paths = [
        path
        for target in arguments.files or TARGETS
        for path in sorted(
            (ROOT / target).glob("*.py") if (ROOT / target).is_dir() else [ROOT / target]
        )
    ]
    known = no_faults()
    made = [
        mutant
        for path in paths
        for mutant in mutants_of(str(path.relative_to(ROOT)), path.read_text())
        if mutant.key not in known
    ]
    if arguments.sample:
        made = random.Random(arguments.seed).sample(made, min(arguments.sample, len(made)))
    hunt = Hunt(made, progress=not arguments.sample)
    files = [str(ROOT / "tests" / "unit" / f"test_{name}.py") for name in arguments.tests]
    options = ["-q", "--no-header", "--no-summary", "--timeout=0", "-p", "no:cacheprovider"]
    pytest.main([*options, "--rootdir", str(ROOT), *files], plugins=[hunt])
    of = Counter(mutant.function[0] for mutant in made)
    for mutant in hunt.untested:
        print(f"no test   {mutant}")
    for mutant in hunt.survived:
        print(f"survived  {mutant}")
    left = Counter(mutant.function[0] for mutant in (*hunt.untested, *hunt.survived))
    for file, count in of.items():
        print(f"{count - left[file]:5} of {count:4} noticed  {file}")
    noticed = len(made) - left.total()
    print(f"{noticed} of {len(made)} noticed")
    sys.exit(noticed < arguments.least * len(made))


if __name__ == "__main__":
    main()
