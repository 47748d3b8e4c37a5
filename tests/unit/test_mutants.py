"""A sample of `tests/stress/mutants.py`: what decides is not changed without a test that fails."""

import ast
import builtins
import subprocess
import sys

import pytest
from stress import mutants

SOURCE = '''
class Thing:
    """Words < more."""

    def least(self, one: "int < 3", other: int = 7) -> int:
        if one < other and not other:
            raise ValueError(f"{one + other}")
        return min(-one, 2)


def empty() -> None:
    pass
'''


def test_one_thing_is_changed_at_a_time_and_no_text() -> None:
    made = [f"{m.before} -> {m.after}" for m in mutants.mutants_of("thing.py", SOURCE)]
    assert sorted(made) == [
        "-one -> +one",
        "2 -> 3",
        "if one < other and (not other):\n    raise ValueError(f'{one + other}') -> "
        "if not (one < other and (not other)):\n    raise ValueError(f'{one + other}')",
        "min -> max",
        "one < other -> one <= other",
        "one < other and (not other) -> one < other or not other",
    ]


def test_a_mutant_takes_the_place_of_its_function() -> None:
    space: dict[str, type] = {}
    exec(compile(ast.parse(SOURCE), str(mutants.ROOT / "thing.py"), "exec"), space)
    function = space["Thing"].least  # type: ignore[attr-defined]
    assert function(None, 1, 5) == -1
    [other] = [m for m in mutants.mutants_of("thing.py", SOURCE) if m.after == "max"]
    assert other.function == ("thing.py", "Thing.least", function.__code__.co_firstlineno)
    function.__code__ = other.code
    assert function(None, 1, 5) == 2


def test_a_marked_function_does_the_same_and_tells_the_lines_it_reaches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    space: dict[str, type] = {}
    exec(compile(ast.parse(SOURCE), str(mutants.ROOT / "thing.py"), "exec"), space)
    function = space["Thing"].least  # type: ignore[attr-defined]
    first = function.__code__.co_firstlineno
    key = ("thing.py", "Thing.least", first)
    seen: list[tuple[str, int]] = []
    monkeypatch.setattr(builtins, mutants.REACHED, seen.append, raising=False)
    [(same, function.__code__)] = mutants.marked("thing.py", SOURCE, {key: range(first, first + 9)})
    assert same == key
    assert (function(None, 1, 5), seen) == (-1, [("thing.py", first + n) for n in (1, 3)])
    with pytest.raises(ValueError, match="1"):
        function(None, -1, 0)
    assert seen[2:] == [("thing.py", first + n) for n in (1, 2)]
    [(_, code)] = mutants.marked("thing.py", SOURCE, {key: {first + 3}})
    assert "a_test_reached" in code.co_names and len(code.co_code) < len(function.__code__.co_code)


def test_what_is_said_to_be_no_fault_is_a_mutant() -> None:
    known = mutants.no_faults()
    made = {
        mutant.key
        for name in {key[0] for key in known}
        for mutant in mutants.mutants_of(name, (mutants.ROOT / name).read_text())
    }
    assert known <= made


@pytest.mark.timeout(1200)  # where others compute
def test_most_of_a_sample_are_noticed() -> None:
    """`python -m stress.mutants` looks at all of them, and asks for nine of ten."""
    command = [sys.executable, mutants.__file__, "--sample", "40", "--least", "0.75"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=mutants.ROOT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " of 40 noticed" in done.stdout
