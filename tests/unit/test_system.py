"""How the owner of this or that system gets another kernel, or boots with another argument."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from sched_ctl.kernel import system

PI, DEBIAN = "6.12.47+rpt-rpi-v8", "6.12.57+deb13-arm64"


def on(monkeypatch: pytest.MonkeyPatch, release: str, machine: str = "aarch64") -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release=release, machine=machine))


def test_a_raspberry_pi_is_not_told_to_install_a_kernel_that_it_would_not_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text('ID=debian\nVERSION_ID="13"\n')
    on(monkeypatch, DEBIAN)
    install = "apt install -t trixie-backports linux-image-arm64"
    sources = tmp_path / "etc/apt/sources.list.d"
    sources.mkdir(parents=True)
    (tmp_path / "etc/apt/sources.list").write_text("# deb http://x trixie-backports main\n")
    words, command = system.newer_kernel(tmp_path)
    assert words is None and command is not None and command.endswith(f" apt update && {install}")
    assert command.startswith("echo 'deb http://deb.debian.org/debian trixie-backports main' >/etc")
    (sources / "debian.sources").write_text("Suites: trixie trixie-backports\n")
    assert system.newer_kernel(tmp_path) == (None, install)
    on(monkeypatch, PI)
    words, command_of_pi = system.newer_kernel(tmp_path)
    assert command_of_pi is None and words is not None and "nice" in words


@pytest.mark.parametrize("text", ["", "ID=debian", "nonsense", "ID=arch\nVERSION_ID=13"])
def test_nothing_is_advised_for_a_system_that_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    on(monkeypatch, DEBIAN)
    assert system.newer_kernel(tmp_path) == (None, None)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text(text)
    assert system.newer_kernel(tmp_path) == (None, None)


def test_where_a_kernel_argument_is_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, DEBIAN)
    assert system.boot_with("psi=1", tmp_path) == ("boot with psi=1", None)
    (tmp_path / "etc/default").mkdir(parents=True)
    (tmp_path / "etc/default/grub").touch()
    words, command = system.boot_with("psi=1", tmp_path)
    assert "/etc/default/grub" in words and "update-grub" not in words and command is None
    (tmp_path / "usr/sbin").mkdir(parents=True)
    (tmp_path / "usr/sbin/update-grub").touch()
    assert "run update-grub" in system.boot_with("psi=1", tmp_path)[0]
    (tmp_path / "usr/sbin/grubby").touch()
    grubby = "grubby --update-kernel=ALL --args=psi=1 && reboot"
    assert system.boot_with("psi=1", tmp_path) == ("boot with psi=1:", grubby)
    on(monkeypatch, PI)
    (tmp_path / "boot/firmware").mkdir(parents=True)
    (tmp_path / "boot/firmware/cmdline.txt").touch()
    words, command = system.boot_with("psi=1", tmp_path)
    assert (words, command) == (
        "boot with psi=1:",
        "sed -i '1s/$/ psi=1/' /boot/firmware/cmdline.txt && reboot",
    )
