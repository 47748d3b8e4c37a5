"""The guest kernels that the tests run on, in one list, and where to get them.

A kernel is taken from the folder that SCHED_CTL_KERNELS names (files `vmlinuz-NAME`) if it is
there, else from the cache, else it is fetched from Debian's archive. Debian drops a backports
kernel when a newer one arrives, so a fetch can fail for good: then the error lists what is offered.

A kernel with the drivers of a guest's root as modules has a folder `modules-NAME` beside its image.
"""

import os
import re
import shutil
import struct
import subprocess
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import debian
import initramfs
import qemu

__all__ = [
    "ALL",
    "MATRIX",
    "OTHERS",
    "Kernel",
    "KernelNotFound",
    "SchedExt",
    "append",
    "architecture",
    "at_hand",
    "find",
    "matrix",
    "modules",
    "unpack",
    "with_sched_ext",
]


class SchedExt(Enum):
    """What a kernel offers to a BPF scheduler."""

    WORKS = "works"
    UNUSABLE = "unusable"  # present, but no program that calls a kfunc can be loaded
    ABSENT = "absent"


@dataclass(frozen=True)
class Kernel:
    """One row of the matrix.

    name: major.minor, also the suffix of its file; "-arm64" behind it, and "-16k" for pages of
    16 kB. suite: where Debian has or had it; empty for one that is built here. modular: the
    drivers of a guest's root are modules. append: for its command line.
    """

    name: str
    suite: str
    sched_ext: SchedExt
    ext_server: bool = False  # has a deadline server for SCHED_EXT (since 7.0)
    modular: bool = False
    append: str = ""

    @property
    def series(self) -> str:
        return self.name.partition("-")[0]

    @property
    def architecture(self) -> str:
        """As Debian calls it."""
        return "arm64" if "-arm64" in self.name else "amd64"

    @property
    def flavour(self) -> str:
        """What Debian's package of it is called behind the version."""
        kind = self.name.partition("-")[2]
        return kind if kind.endswith("k") else f"cloud-{self.architecture}"


# QEMU 7.2 emulates cmpxchg16b with flags that can be rubbish; an interrupt at the next instruction
# then ends in a double fault. Kernels use it in every allocation, unless the CPU seems to have
# none. Not for 6.18 and later: without it their BPF task storage cannot allocate.
NO_CX16 = "clearcpuid=cx16"


# The test matrix: `guest_*.py` run on these.
MATRIX = (
    Kernel("6.1", "bookworm", SchedExt.ABSENT, modular=True, append=NO_CX16),
    Kernel("6.12", "bookworm-backports", SchedExt.ABSENT, append=NO_CX16),
    Kernel("6.16", "trixie-backports", SchedExt.WORKS, append=NO_CX16),
    Kernel("6.18", "trixie-backports", SchedExt.WORKS),
    Kernel("7.2", "trixie-backports", SchedExt.UNUSABLE),
    Kernel("7.3", "trixie-backports", SchedExt.WORKS, ext_server=True),
)

# Tests name these, or a command is run on them.
OTHERS = (
    Kernel("6.12-scx", "", SchedExt.WORKS, append=NO_CX16),
    Kernel("6.17", "trixie-backports", SchedExt.WORKS, append=NO_CX16),
    Kernel("6.19", "trixie-backports", SchedExt.WORKS),
    Kernel("7.0", "trixie-backports", SchedExt.WORKS, ext_server=True),
    Kernel("7.2.13", "sid", SchedExt.WORKS, ext_server=True),
    Kernel("6.18-arm64", "trixie-backports", SchedExt.WORKS),
    Kernel("6.18-arm64-16k", "trixie-backports", SchedExt.WORKS),
    Kernel("7.3-arm64", "trixie-backports", SchedExt.WORKS, ext_server=True),
)
ALL = MATRIX + OTHERS


class KernelNotFound(Exception):
    """No such kernel here, nor at Debian; the text says what there is."""


def matrix(name: str) -> Kernel:
    for kernel in ALL:
        if kernel.name == name:
            return kernel
    raise KernelNotFound(f"no kernel {name!r}: {', '.join(kernel.name for kernel in ALL)}")


def append(name: str) -> str:
    """What belongs on the command line of this kernel; nothing for the path of an image."""
    return next((kernel.append for kernel in ALL if kernel.name == name), "")


def find(name: str) -> Path:
    """The kernel image of a row of the matrix, or of a path to one. Fetches it where needed."""
    if "/" in name or name.startswith("vmlinuz"):
        path = Path(name).resolve()
        if not path.is_file():
            raise KernelNotFound(f"no kernel image {path}")
        return path
    kernel = matrix(name)
    return at_hand(name) or _fetch(kernel, _cache() / f"vmlinuz-{kernel.name}")


def with_sched_ext() -> tuple[str, Path]:
    """Name and image of a kernel for this machine on which it works: one at hand, else fetched."""
    names = [
        kernel.name
        for kernel in (matrix("6.18"), *ALL)
        if kernel.sched_ext is SchedExt.WORKS and kernel.architecture == qemu.OWN
    ]
    for name in names:
        if image := at_hand(name):
            return name, image
    for name in dict.fromkeys(names):
        try:
            return name, find(name)
        except KernelNotFound as error:
            why = error
    raise why


def at_hand(name: str) -> Path | None:
    """The image of a row of the matrix, if it is there without fetching it."""
    folders = [_cache()]
    if folder := os.environ.get("SCHED_CTL_KERNELS"):
        folders.insert(0, Path(folder))
    modular = any(kernel.name == name and kernel.modular for kernel in ALL)
    images = (folder / f"vmlinuz-{name}" for folder in folders)
    return next(
        (
            image.resolve()
            for image in images
            if image.is_file() and (modules(image) or not modular)
        ),
        None,
    )


def architecture(image: Path) -> str:
    """What kind of machine this image is for. Documentation/arch/arm64/booting.rst"""
    with image.open("rb") as file:
        head = file.read(64)
    return "arm64" if head[56:60] == b"ARM\x64" or head[4:8] == b"zimg" else "amd64"


def unpack(image: Path, target: Path) -> bool:
    """Write the kernel that unpacks itself in this image; whether an emulator can boot that.

    To unpack it is a fifth of the CPU time of an emulated boot, and nothing here. Of x86 with zstd,
    as Debian has them. Documentation/arch/x86/boot.rst; include/xen/interface/elfnote.h, PHYS32
    """
    data = image.read_bytes()
    if data[0x202:0x206] != b"HdrS":
        return False
    offset, length = struct.unpack_from("<II", data, 0x248)
    begin = (data[0x1F1] + 1) * 512 + offset
    packed = data[begin : begin + length - 4]  # its length when unpacked is behind it
    if shutil.which("zstd") is None or not packed.startswith(b"\x28\xb5\x2f\xfd"):
        return False
    done = subprocess.run(["zstd", "-dc"], input=packed, capture_output=True, check=False)
    target.write_bytes(done.stdout)
    return done.returncode == 0 and struct.pack("<III", 4, 8, 18) + b"Xen\0" in done.stdout


def modules(image: Path) -> Path | None:
    """The modules that a guest of this image needs to see its root; None if it needs none."""
    folder = image.with_name(image.name.replace("vmlinuz-", "modules-", 1))
    return folder if folder != image and folder.is_dir() else None


def _cache() -> Path:
    return debian.cache() / "kernels"


def _fetch(kernel: Kernel, target: Path) -> Path:
    """Download the newest kernel of this series, unpack its image, store it atomically."""
    if not kernel.suite:
        raise KernelNotFound(
            f"kernel {kernel.name} is in no archive\nhint: vagrant/build-{kernel.name} builds it"
        )
    try:
        with debian.archive(kernel.suite, target, kernel.architecture) as archive:
            return _unpack(kernel, target, archive)
    except debian.ArchiveError as error:
        raise KernelNotFound(
            f"kernel {kernel.name} cannot be fetched: {error}\n"
            "hint: put its image into a folder and name that in SCHED_CTL_KERNELS"
        ) from error


def _unpack(kernel: Kernel, target: Path, archive: debian.Archive) -> Path:
    kind = kernel.flavour
    offered = archive.names(rf"^linux-image-[0-9].*-{kind}$")
    wanted = [name for name in offered if re.match(rf"linux-image-{kernel.series}[.+-]", name)]
    # The series' meta-package (linux-image-6.12-cloud-amd64) has no image.
    wanted = [name for name in wanted if name != f"linux-image-{kernel.series}-{kind}"]
    if not wanted:
        series = {".".join(map(str, _version(name)[:2])): None for name in offered}
        raise KernelNotFound(
            f"Debian's {kernel.suite} has no kernel {kernel.name} any more, it offers: "
            + (", ".join(sorted(series, key=_version)) or "none")
        )
    newest = max(wanted, key=_version)
    # Since 7.2 or so the image lies in a package of its own.
    for package in (newest, newest.replace("linux-image-", "linux-binary-")):
        archive.unpack(package)
        for image in archive.tree.glob("**/vmlinuz*"):
            if image.is_file() and not image.is_symlink():
                if kernel.modular:
                    _keep_modules(archive.tree, target)
                return image.rename(target)
    raise KernelNotFound(f"{newest} has no kernel image in it")


def _keep_modules(tree: Path, image: Path) -> None:
    folder = image.with_name(f"modules-{image.name.removeprefix('vmlinuz-')}")
    picked = tree.with_name(folder.name)
    try:
        initramfs.pick(tree, picked)
    except initramfs.InitramfsError as error:
        raise KernelNotFound(str(error)) from error
    shutil.rmtree(folder, ignore_errors=True)
    picked.rename(folder)


def _version(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]
