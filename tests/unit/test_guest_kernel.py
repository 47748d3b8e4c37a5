"""A guest's kernel that is unpacked before it is booted, and what a guest mounts."""

import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import guest
import kernels
import pytest

NOTE = struct.pack("<III", 4, 8, 18) + b"Xen\0"


def image(content: bytes) -> bytes:
    """A bzImage of five sectors of set-up code, with this kernel packed at its offset 716."""
    packed = subprocess.run(["zstd", "-c"], input=content, capture_output=True, check=True).stdout
    head = bytearray(512 * 5)
    head[0x1F1] = 4
    head[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", head, 0x248, 716, len(packed) + 4)
    return bytes(head) + bytes(716) + packed + struct.pack("<I", len(content)) + bytes(99)


@pytest.mark.needs("zstd")
def test_a_kernel_is_unpacked_from_its_image(tmp_path: Path) -> None:
    content = b"\x7fELF" + bytes(5000) + NOTE
    (tmp_path / "vmlinuz").write_bytes(image(content))
    assert kernels.unpack(tmp_path / "vmlinuz", tmp_path / "kernel")
    assert (tmp_path / "kernel").read_bytes() == content


@pytest.mark.needs("zstd")
@pytest.mark.parametrize(
    "spoilt",
    [
        lambda: b"",
        lambda: image(b"\x7fELF" + bytes(5000)),  # without an entry for emulators
        lambda: image(NOTE)[:-120],
        lambda: image(NOTE).replace(b"\x28\xb5\x2f\xfd", b"\xfd7zX"),
        lambda: b"ARM\x64" + bytes(1000),
    ],
)
def test_what_cannot_be_booted_unpacked_boots_as_it_is(
    tmp_path: Path, spoilt: Callable[[], bytes]
) -> None:
    (tmp_path / "vmlinuz").write_bytes(spoilt())
    assert not kernels.unpack(tmp_path / "vmlinuz", tmp_path / "kernel")


def test_what_a_guest_mounts(tmp_path: Path) -> None:
    """A folder that may be written to, one that stays visible below /tmp, and none twice."""
    odd = Path("/tmp/a b#c")
    options = guest.Options(write=(Path("/srv/out"),), show=(odd, odd, Path("/opt")))
    guest._write_job(tmp_path, ["true"], options, {})
    rows = [line.split() for line in (tmp_path / "fstab").read_text().splitlines()]
    places = [row[1] for row in rows]
    assert len(set(places)) == len(places)
    assert places.index("/run") < places.index("/run/job") < places.index("/tmp")
    bound = {row[1]: (row[0], row[3].split(",")[1]) for row in rows if row[3].startswith("bind,")}
    assert bound["/srv/out"] == ("/run/host/srv/out", "rw")
    assert bound[r"/tmp/a\040b\043c"] == (r"/run/host/tmp/a\040b\043c", "ro")
    assert "/opt" not in bound, "it is there as it is"
