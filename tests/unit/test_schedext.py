"""What /sys/kernel/sched_ext says of another scheduler."""

import errno
import os
from pathlib import Path

import pytest

from sched_ctl.kernel import schedext


def test_another_scheduler_is_named_and_whether_it_delegates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedext, "ROOT", tmp_path)
    (tmp_path / "state").write_text("enabled\n")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "ops").write_text("stranger\n")
    busy = OSError(errno.EBUSY, os.strerror(errno.EBUSY))
    alone = schedext.explain_error(busy, "attach")
    assert alone.because == "another scheduler is attached: stranger"
    assert "below" not in str(alone.hint)
    (tmp_path / "root" / "sub").mkdir()
    delegates = schedext.explain_error(busy, "attach")
    assert delegates.because == alone.because + ", which lets others run below it (sub-schedulers)"
    assert str(delegates.hint).endswith("ours does not run below another one")
