"""Which QEMU guests run on, tried with programs that only tell a version."""

import os
from collections.abc import Iterator
from pathlib import Path

import debian
import pytest
import qemu


def program(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / qemu.PROGRAM
    file.write_text(f"#!/bin/sh\necho 'QEMU emulator version {version} (Debian 1:7)'\n")
    file.chmod(0o755)
    return file


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(debian, "release", lambda: "")
    forget()
    yield tmp_path
    forget()  # guests of the same run ask again


def forget() -> None:
    qemu.find.cache_clear()
    qemu.installed.cache_clear()


def test_the_installed_one_if_it_is_good(machine: Path) -> None:
    path = program(machine / "bin", "10.0.2")
    program(machine / "cache/sched-ctl/qemu/usr/bin", "11.0.0")
    found = qemu.find()
    assert found == qemu.Qemu((str(path),), (10, 0, 2))
    assert found.is_good
    assert str(found) == f"QEMU 10.0.2 ({path})"


def test_a_fetched_one_with_its_firmware_else(machine: Path) -> None:
    program(machine / "bin", "7.2.22")
    path = program(machine / "cache/sched-ctl/qemu/usr/bin", "10.0.2")
    found = qemu.find()
    assert found is not None and found.is_good
    alone = qemu.installed()  # for one CPU
    assert alone is not None and alone.version == (7, 2, 22)
    share = machine / "cache/sched-ctl/qemu/usr/share"
    assert found.command == (str(path), "-L", f"{share}/qemu", "-L", f"{share}/seabios")


def test_the_old_one_and_why(machine: Path) -> None:
    path = program(machine / "bin", "8.0.5")
    broken = program(machine / "cache/sched-ctl/qemu/usr/bin", "10.0.2")
    broken.write_text("#!/bin/sh\nexit 127\n")  # a library is missing
    found = qemu.find()
    assert found is not None and not found.is_good
    assert found.command == (str(path),)
    assert "no later QEMU is known" in found.lacking


def test_none(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "bin").mkdir()
    monkeypatch.setenv("PATH", str(machine / "bin"))
    assert qemu.find() is None


def test_an_archive_out_of_reach_is_told(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(machine / "bin", "7.2.22")
    monkeypatch.setattr(debian, "release", lambda: "bookworm")
    monkeypatch.setattr(debian, "MIRROR", "http://127.0.0.1:9")
    found = qemu.find()
    assert found is not None and not found.is_good
    assert "failed" in found.lacking
    assert not list((machine / "cache/sched-ctl").glob("fetch-*"))


def test_another_kind_of_machine_has_its_own(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(machine / "bin", "7.2.22")
    monkeypatch.setenv("PATH", str(machine / "bin"))
    assert qemu.find("arm64") is None
    fetched = program(machine / "cache/sched-ctl/qemu-arm64/usr/bin", "10.0.2")
    fetched.rename(fetched.with_name("qemu-system-aarch64"))
    qemu.find.cache_clear()
    found = qemu.find("arm64")
    assert found is not None and found.is_good
    assert found.command[0].endswith("qemu-arm64/usr/bin/qemu-system-aarch64")
