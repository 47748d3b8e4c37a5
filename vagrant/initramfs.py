"""A small initramfs for kernels that cannot mount a guest's root by themselves.

Debian 12's 6.1 has virtio and virtiofs as modules. Of its package only those modules are kept, in
a folder beside the image, named so that their order is the order to load them in. At each boot
they are packed with a static program (initramfs.c) that loads them and goes on to the root.
"""

import functools
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["InitramfsError", "pack", "pick", "write"]

# What a guest needs to see its root and to answer; what these need comes along.
WANTED = ("virtio_pci", "virtiofs", "virtio_console")
FOLDERS = ("modules", "root", "proc", "dev")
SOURCE = Path(__file__).with_name("initramfs.c")


class InitramfsError(Exception):
    """The initramfs cannot be made."""


def pick(tree: Path, target: Path) -> None:
    """Copy the modules that a guest needs from an unpacked kernel package to a folder.

    Those that are built into the kernel are not in the package. Leaves no folder where that is
    true of all. Raises InitramfsError for compressed modules.
    """
    found = {file.name.partition(".")[0].replace("-", "_"): file for file in tree.rglob("*.ko*")}
    order: list[str] = []

    def add(name: str) -> None:
        if name in found and name not in order:
            for needed in _needs(found[name]):
                add(needed)
            order.append(name)

    for name in WANTED:
        add(name)
    if order:
        target.mkdir(parents=True)
    for number, name in enumerate(order):
        shutil.copy(found[name], target / f"{number:02}-{name}.ko")


def _needs(module: Path) -> list[str]:
    """Names of the modules that this one depends on, by its section .modinfo."""
    if module.suffix != ".ko":
        raise InitramfsError(f"{module.name}: compressed modules are not supported")
    for text in module.read_bytes().split(b"\0"):
        if text.startswith(b"depends="):
            names = text.removeprefix(b"depends=").decode().split(",")
            return [name.replace("-", "_") for name in names if name]
    return []


def write(modules: Path, target: Path) -> None:
    """The initramfs with the modules of a folder. Raises InitramfsError."""
    entries = [(name, stat.S_IFDIR | 0o755, b"") for name in FOLDERS]
    entries += [("init", stat.S_IFREG | 0o755, _init())]
    entries += [
        (f"modules/{file.name}", stat.S_IFREG | 0o644, file.read_bytes())
        for file in sorted(modules.iterdir())
    ]
    with target.open("wb") as file:
        file.writelines(pack(entries))


def pack(entries: Sequence[tuple[str, int, bytes]]) -> Iterator[bytes]:
    """A cpio archive as the kernel reads it (newc): name, mode and content of each file."""
    for number, (name, mode, content) in enumerate((*entries, ("TRAILER!!!", 0, b"")), 1):
        path = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
        head = b"070701" + b"".join(b"%08x" % field for field in fields) + path
        yield head + bytes(-len(head) % 4)
        yield content + bytes(-len(content) % 4)


@functools.cache
def _init() -> bytes:
    """The program, compiled."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise InitramfsError("this kernel needs an initramfs, and that a C compiler (gcc)")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "init")
        command = [compiler, "-static", "-O2", "-Wall", "-s", "-o", str(program), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode != 0:
            raise InitramfsError(f"{SOURCE.name} cannot be compiled: {done.stderr.strip()[-400:]}")
        return program.read_bytes()
