"""One that only looks: what others do to its folder meanwhile, and what it leaves."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from fakes import QUICK, FakeEngine

from sched_ctl.controller.loop import Controller
from sched_ctl.errors import UserError
from sched_ctl.service import observe
from sched_ctl.service.socket import answers
from support import wait_until

SOON_S = 30.0


def looking(run_dir: Path, meanwhile: Callable[[], object]) -> None:
    """Watch a fake engine while something is done, in a thread of its own."""
    found: list[BaseException | None] = []

    def started(controller: Controller) -> None:
        doing = asyncio.get_running_loop().run_in_executor(None, meanwhile)

        def done(what: "asyncio.Future[object]") -> None:
            found.append(what.exception())
            controller.stop("seen enough")

        doing.add_done_callback(done)

    settings = msgspec.structs.replace(QUICK, run_dir=str(run_dir))
    observe.run(settings, FakeEngine.kind(FakeEngine()), duration_s=2 * SOON_S, started=started)
    assert found == [None]


@pytest.mark.parametrize("what", ["run", "run/watch", "run/watch/control.sock"])
def test_it_answers_again_where_its_folder_was_removed(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observe, "MIND_S", 0.01)

    def remove() -> None:
        assert answers(tmp_path / "run/watch")
        path = tmp_path / what
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        wait_until(lambda: answers(tmp_path / "run/watch"), SOON_S)

    looking(tmp_path / "run", remove)


def test_it_ends_where_its_folder_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observe, "MIND_S", SOON_S)
    looking(tmp_path / "run", lambda: shutil.rmtree(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_it_leaves_no_folder_that_it_made(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    looking(run_dir, lambda: None)
    assert not run_dir.exists()
    looking(run_dir, (run_dir / "somebody's").touch)
    assert [path.name for path in run_dir.iterdir()] == ["somebody's"]
    (run_dir / "somebody's").unlink()
    looking(run_dir, lambda: None)
    assert run_dir.exists() and not list(run_dir.iterdir())


def test_it_looks_in_no_folder_that_others_could_exchange(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    run_dir = tmp_path / "open" / "run"
    with pytest.raises(UserError, match="not safe"):
        looking(run_dir, lambda: None)
    assert not run_dir.exists()
