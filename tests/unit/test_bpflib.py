"""Which libbpf checks in guests find, tried with an empty cache and one that has a file."""

from pathlib import Path

import bpflib
import debian
import guest
import pytest
from vm import boots


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(debian, "release", lambda: "bookworm")
    file = tmp_path / "sched-ctl/libbpf/usr/lib/x86_64-linux-gnu/libbpf.so.1.4.6"
    file.parent.mkdir(parents=True)
    file.with_name(bpflib.NAME).symlink_to(file.name)
    return file


def test_it_is_lacking_until_all_of_it_is_there(fetched: Path) -> None:
    assert bpflib.is_lacking() and bpflib.environment() == {}  # a link to nothing
    fetched.touch()
    assert not bpflib.is_lacking()
    assert bpflib.environment() == {"LD_LIBRARY_PATH": str(fetched.parent)}


def test_no_other_system_gets_that_of_debian_12(
    fetched: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched.touch()
    for release in ("trixie", ""):
        monkeypatch.setattr(debian, "release", lambda release=release: release)
        assert not bpflib.is_lacking() and bpflib.environment() == {}


def test_both_are_tried(fetched: Path) -> None:
    """What a user of Debian 12 has is not left out: on one kernel, and wherever time is real."""
    fetched.touch()

    def finds(kernel: str, *, icount: bool) -> bool:
        _, environment = boots.Boot(kernel, guest.Options(icount=icount)).command()
        return "LD_LIBRARY_PATH" in environment

    assert finds("6.18", icount=True) and finds("7.3", icount=True)
    assert not finds("6.16", icount=True) and not finds("7.3", icount=False)
