"""The runner of checks in a guest, tried without a guest."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from vm import inside

CHECKS = """
import os, sys, time
from vm.inside import skip
def check_ok(): print("hello")
def check_bad(): assert 1 + 1 == 3
def check_skip(): skip("a moon")
def check_slow(): time.sleep(100)
def check_crash(): os.kill(os.getpid(), 11)
def check_fork():
    if os.fork() == 0:
        time.sleep(100)
def check_exit(): sys.exit(0)
"""


def test_every_check_has_its_own_outcome(tmp_path: Path) -> None:
    (tmp_path / "guest_some.py").write_text(CHECKS)
    names = ["ok", "bad", "skip", "slow", "crash", "fork", "exit", "ok"]
    done = subprocess.run(
        [sys.executable, inside.__file__]
        + [w for name in names for w in (str(tmp_path / "guest_some.py"), f"check_{name}", "2")],
        env=os.environ | {"PYTHONPATH": str(Path(inside.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    records = [
        json.loads(line.removeprefix(inside.MARK))
        for line in done.stdout.splitlines()
        if line.startswith(inside.MARK)
    ]
    ends = [record for record in records if "end" in record]
    assert [record["end"][1].removeprefix("check_") for record in ends] == names
    assert [record["outcome"] for record in ends] == [
        *("passed", "failed", "skipped", "failed", "failed", "passed", "failed", "passed")
    ]
    texts = [record["text"] for record in ends]
    assert "assert 1 + 1 == 3" in texts[1]
    assert texts[2] == "needs a moon"
    assert "not finished after 2 s" in texts[3]
    assert "without a result" in texts[4]
    assert "hello" in done.stdout


@pytest.mark.parametrize(
    ("looks", "taken_in_real_time", "taken_where_exact"),
    [
        ("gg", 2, 1),
        ("gbgg", 4, 1),
        ("bggg", 4, 4),
        ("bggb", None, None),
        ("bbb", None, None),
        ("bbgbb", None, None),
        ("gb" * 6, None, 1),  # wrong half of the time
        ("bg" * 6, None, None),
    ],
)
@pytest.mark.parametrize("exact", [False, True])
def test_looks(
    looks: str,
    taken_in_real_time: int | None,
    taken_where_exact: int | None,
    exact: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(inside.EXACT, raising=False)
    monkeypatch.setattr(inside, "bad_looks", 0)
    if exact:
        monkeypatch.setenv(inside.EXACT, "1")
    taken = taken_where_exact if exact else taken_in_real_time
    left = iter(looks + "b" * 9)
    if taken is None:
        with pytest.raises(AssertionError, match="looks were bad"):
            inside.look_until(lambda: next(left), "g".__eq__)
        assert inside.bad_looks == 2 * exact
    else:
        assert inside.look_until(lambda: next(left), "g".__eq__) == "g"
        assert len(list(left)) == len(looks) + 9 - taken
        assert inside.bad_looks == looks[:taken].count("b") * exact
