"""A file that cannot be written is told before anything is looked at."""

import os
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from sched_ctl.cli import fleet, fleet_sweep, make_app, outputs
from sched_ctl.errors import UserError
from sched_ctl.telemetry import profiles

ME = str(os.getpid())


@pytest.mark.parametrize(
    "arguments",
    [
        ["waits", ME, "--perfetto", "OUT"],
        ["waits", ME, "--folded", "OUT"],
        ["waits", ME, "--flame", "OUT"],
        ["fleet", "profile", "f", "OUT"],
        ["fleet", "report", "f", "OUT"],
        ["fleet", "compare", "f", "--drop-ins", "OUT"],
        ["fleet", "sweep", "PROFILE", "o", "--drop-ins", "OUT"],
    ],
)
def test_nothing_is_looked_at_for_a_file_that_cannot_be_written(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if arguments[0] == "fleet":
        pytest.importorskip("pyarrow")

    def look(*_: object, **__: object) -> NoReturn:
        raise AssertionError

    for place in ("timeline.record", "stacks.look"):
        monkeypatch.setattr(f"sched_ctl.probes.{place}", look)
    for module in (fleet, fleet_sweep):
        monkeypatch.setattr(module, "check", lambda: None)
        monkeypatch.setattr(module, "spark_of", look)
    (tmp_path / "file").touch()
    profiles.write(tmp_path / "profile", profiles.Profile(queries=[]))
    words = {"OUT": str(tmp_path / "file" / "x"), "PROFILE": str(tmp_path / "profile")}
    done = CliRunner().invoke(make_app(), [words.get(word, word) for word in arguments])
    assert isinstance(done.exception, UserError), done.exception
    assert done.exception.message.startswith(f"cannot write {words['OUT']}")


def test_a_try_leaves_nothing_behind(tmp_path: Path) -> None:
    outputs.check(tmp_path / "new")
    outputs.check_in(tmp_path / "folder" / "deep", "new")
    assert [path.name for path in tmp_path.rglob("new")] == []
    outputs.write(tmp_path / "new", "kept")
    outputs.check(tmp_path / "new")
    assert (tmp_path / "new").read_text() == "kept"
    (tmp_path / "link").symlink_to("elsewhere")
    outputs.check(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and not (tmp_path / "elsewhere").exists()
    with pytest.raises(UserError, match="Is a directory"):
        outputs.check(tmp_path)
