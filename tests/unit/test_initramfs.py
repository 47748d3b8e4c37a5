"""The initramfs for kernels whose drivers are modules. guest_fallback.py boots one with it."""

import stat
from pathlib import Path

import initramfs
import pytest

MODULES = {  # name of the file -> what it depends on
    "fs/virtiofs.ko": "fuse,virtio",
    "fs/fuse.ko": "",
    "virtio/virtio.ko": "virtio_ring",
    "virtio/virtio_ring.ko": "",
    "virtio/virtio-pci.ko": "virtio-ring,virtio",
    "net/virtio_net.ko": "virtio",
}


def tree(folder: Path) -> Path:
    for name, needs in MODULES.items():
        file = folder / "lib" / "modules" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"\x7fELF\0license=GPL\0depends=" + needs.encode() + b"\0name=x\0")
    return folder


def test_only_what_a_guest_needs_is_kept_in_the_order_to_load_it(tmp_path: Path) -> None:
    initramfs.pick(tree(tmp_path / "tree"), tmp_path / "kept")
    names = sorted(file.name for file in (tmp_path / "kept").iterdir())
    assert names == [
        *("00-virtio_ring.ko", "01-virtio.ko", "02-virtio_pci.ko", "03-fuse.ko", "04-virtiofs.ko")
    ]


def test_nothing_is_kept_where_all_is_built_in(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    initramfs.pick(tmp_path / "tree", tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_compressed_modules_are_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "virtiofs.ko.xz").write_bytes(b"")
    with pytest.raises(initramfs.InitramfsError, match="compressed"):
        initramfs.pick(tmp_path, tmp_path / "kept")


@pytest.mark.needs("cc")
def test_the_archive_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    initramfs.pick(tree(tmp_path / "tree"), tmp_path / "kept")
    initramfs.write(tmp_path / "kept", tmp_path / "image")
    found = dict(read((tmp_path / "image").read_bytes()))
    mode, program = found.pop("init")
    assert stat.S_ISREG(mode) and mode & 0o111
    assert program.startswith(b"\x7fELF")
    assert {name for name, (mode, _) in found.items() if stat.S_ISDIR(mode)} == {*initramfs.FOLDERS}
    for file in (tmp_path / "kept").iterdir():
        assert found[f"modules/{file.name}"][1] == file.read_bytes()


def read(archive: bytes) -> list[tuple[str, tuple[int, bytes]]]:
    """Files of a newc archive. Documentation/driver-api/early-userspace/buffer-format.rst"""
    found: list[tuple[str, tuple[int, bytes]]] = []
    at = 0
    while True:
        assert archive[at : at + 6] == b"070701"
        fields = [int(archive[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        name_at, size = at + 110, fields[6]
        name = archive[name_at : name_at + fields[11] - 1].decode()
        content_at = name_at + fields[11] + -(name_at + fields[11]) % 4
        if name == "TRAILER!!!":
            return found
        found.append((name, (fields[1], archive[content_at : content_at + size])))
        at = content_at + size + -(content_at + size) % 4
