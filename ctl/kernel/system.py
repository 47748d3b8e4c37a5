"""Which system runs here, and how its owner changes what its kernel is or is booted with."""

import os
from pathlib import Path

__all__ = ["boot_with", "is_raspberry", "newer_kernel"]

ROOT = Path("/")
# Where boot arguments are kept, best known first: Raspberry Pi OS 12 and later, and before.
_PI_ARGUMENTS = ("boot/firmware/cmdline.txt", "boot/cmdline.txt")
_BACKPORTS = "trixie-backports"


def is_raspberry(release: str | None = None) -> bool:
    """Whether the kernel is one of Raspberry Pi OS or Ubuntu for it: its firmware boots no other.

    release: as uname -r prints it: 6.12.47+rpt-rpi-v8, 6.8.0-1010-raspi.
    """
    release = os.uname().release if release is None else release
    return "rpi" in release or "raspi" in release


def newer_kernel(root: Path = ROOT) -> tuple[str | None, str | None]:
    """How to get a kernel that has sched_ext, where that is known: in words, as a command."""
    if is_raspberry():
        return "Raspberry Pi's own kernels have none; nice and cgroups work on them", None
    about = _release(root)
    kind = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine)
    if (about.get("ID"), about.get("VERSION_ID")) == ("debian", "13") and kind:
        install = f"apt install -t {_BACKPORTS} linux-image-{kind}"
        if not _has_backports(root):
            source = f"deb http://deb.debian.org/debian {_BACKPORTS} main"
            file = ROOT / "etc/apt/sources.list.d/backports.list"
            install = f"echo '{source}' >{file} && apt update && {install}"
        return None, install
    return None, None


def boot_with(argument: str, root: Path = ROOT) -> tuple[str, str | None]:
    """How to boot with a further kernel argument: in words, and as a command where it is known."""
    words = f"boot with {argument}"
    for name in _PI_ARGUMENTS if is_raspberry() else ():
        if (root / name).exists():
            return f"{words}:", f"sed -i '1s/$/ {argument}/' {ROOT / name} && reboot"
    if (root / "usr/sbin/grubby").exists():  # Fedora, RHEL
        return f"{words}:", f"grubby --update-kernel=ALL --args={argument} && reboot"
    if (root / "etc/default/grub").exists():
        has_it = (root / "usr/sbin/update-grub").exists()  # Debian, Ubuntu
        make = "run update-grub" if has_it else "make GRUB's configuration anew (grub-mkconfig)"
        where = "in GRUB_CMDLINE_LINUX of /etc/default/grub"
        return f"{words}: put it {where}, {make}, reboot", None
    return words, None


def _has_backports(root: Path) -> bool:
    """Whether a source of apt's names them."""
    folder = root / "etc/apt"
    for path in (folder / "sources.list", *sorted(folder.glob("sources.list.d/*"))):
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        if any(_BACKPORTS in line and not line.lstrip().startswith("#") for line in lines):
            return True
    return False


def _release(root: Path) -> dict[str, str]:
    """What os-release(5) says."""
    try:
        lines = (root / "etc/os-release").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {name: value.strip("\"'") for name, _, value in pairs}
