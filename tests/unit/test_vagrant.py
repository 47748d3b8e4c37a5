"""The machines for users: that their descriptions are valid. They are not started here."""

import os
import subprocess
import tempfile
from pathlib import Path

import guest
import kernels
import pytest
import qemu

VAGRANT = Path(__file__).parents[2] / "vagrant"


@pytest.mark.needs("vagrant")
def test_the_vagrantfile_is_valid(tmp_path: Path) -> None:
    done = subprocess.run(
        ["vagrant", "validate", "--ignore-provider"],
        cwd=VAGRANT,
        env=os.environ | {"VAGRANT_DOTFILE_PATH": str(tmp_path), "VAGRANT_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_provisioning_is_valid_and_refuses_other_roles() -> None:
    script = VAGRANT / "provision.sh"
    subprocess.run(["bash", "-n", str(script)], check=True)
    done = subprocess.run([str(script)], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "usage: provision.sh sched-ext|fallback" in done.stderr


def test_the_provisioning_offers_usable_kernels_newest_first(tmp_path: Path) -> None:
    versions = ("6.16.3", "7.2.12", "7.1.13", "6.9.1", "7.10.1")
    listed = [f"linux-image-{version}-amd64" for version in versions]
    search = tmp_path / "apt-cache"
    search.write_text("#!/bin/sh\nprintf '%s - Linux\\n' " + " ".join(listed) + "\n")
    search.chmod(0o755)
    functions, command, _ = (VAGRANT / "provision.sh").read_text().partition("apt-get -q update\n")
    assert command
    done = subprocess.run(
        ["bash", "-c", f"{functions}\nkernels amd64", "provision.sh", "sched-ext"],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "linux-image-7.10.1-amd64|linux-image-6.16.3-amd64\n"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["run", "6.18"], 2, "no command"),
        (["run", "1.0", "--", "true"], 125, "no kernel '1.0'"),
        (["run", "/nowhere/vmlinuz", "--", "true"], 125, "no kernel image"),
        (["run", "--cpus", "many", "6.18", "--", "true"], 2, "invalid int value"),
        (["dance"], 2, "invalid choice"),
    ],
)
def test_the_runner_says_what_is_wrong(arguments: list[str], code: int, text: str) -> None:
    done = subprocess.run(
        [str(VAGRANT / "vm"), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert text in done.stderr


def test_an_image_without_the_modules_that_it_needs_is_not_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCHED_CTL_KERNELS", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("6.1", "6.18"):
        (tmp_path / f"vmlinuz-{name}").touch()
    assert kernels.at_hand("6.18") == tmp_path / "vmlinuz-6.18"
    assert kernels.at_hand("6.1") is None
    (tmp_path / "modules-6.1").mkdir()
    assert kernels.at_hand("6.1") == tmp_path / "vmlinuz-6.1"
    assert kernels.modules(tmp_path / "vmlinuz-6.1") == tmp_path / "modules-6.1"
    assert kernels.modules(tmp_path / "vmlinuz-6.18") is None


def test_an_image_tells_for_which_machine_it_is(tmp_path: Path) -> None:
    image = tmp_path / "vmlinuz"
    image.write_bytes(b"MZ" + bytes(54) + b"ARM\x64" + bytes(64))  # Documentation/arch/arm64
    assert kernels.architecture(image) == "arm64"
    image.write_bytes(b"MZ" + bytes(200) + b"HdrS")
    assert kernels.architecture(image) == "amd64"
    assert kernels.matrix("6.18-arm64").architecture == "arm64"
    assert kernels.matrix("6.18").architecture == kernels.matrix("7.2.13").architecture == "amd64"


def test_kvm_is_for_this_kind_of_machine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / "vmlinuz"
    note = tmp_path / "kvm"
    monkeypatch.setattr(os, "access", lambda *_: True)
    monkeypatch.setattr(guest, "_kvm_note", lambda: note)
    monkeypatch.setattr(qemu, "OWN", "amd64")
    image.write_bytes(b"MZ" + bytes(54) + b"ARM\x64" + bytes(64))
    assert not guest.kvm_works(image)
    assert not note.exists()
    note.write_text("yes")
    assert not guest.kvm_works(image)
    image.write_bytes(b"MZ" + bytes(200) + b"HdrS")
    assert guest.kvm_works(image)


def test_a_path_that_no_kernel_takes_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, folder = tmp_path / "vmlinuz", tmp_path / "with a space"
    image.write_bytes(bytes(1024))
    folder.mkdir()
    monkeypatch.setattr(guest, "missing", lambda *_: None)
    monkeypatch.setattr(guest, "_write_job", lambda *_: pytest.fail("went on"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(guest.GuestError, match=f"{folder}/.*\nhint: set TMPDIR"):
        guest.Guest(image, ["true"], guest.Options(), {})
    assert not list(folder.iterdir())
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(guest, "HERE", folder)
    with pytest.raises(guest.GuestError, match=f"{folder}\nhint: move the checkout"):
        guest.Guest(image, ["true"], guest.Options(), {})
