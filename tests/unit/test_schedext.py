"""What /sys says of another scheduler, and of what stands in the way of ours."""

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


def test_isolated_cpus_stand_in_the_way_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedext, "ROOT", tmp_path)
    monkeypatch.setattr(schedext, "ISOLATED", tmp_path / "isolated")
    (tmp_path / "state").write_text("disabled\n")
    invalid = OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    for text in (None, "\n"):
        if text is not None:
            (tmp_path / "isolated").write_text(text)
        assert not [o for o in schedext.obstacles() if "isolcpus" in o.because]
        assert schedext.explain_error(invalid, "attach").because.startswith("cannot attach it")
    (tmp_path / "isolated").write_text("2-3\n")
    (found,) = [o for o in schedext.obstacles() if "isolcpus" in o.because]
    assert "(2-3)" in found.because and "isolcpus=" in str(found.hint) and not found.transient
    assert schedext.explain_error(invalid, "attach") == found
    assert schedext.explain_error(invalid, "load") != found
