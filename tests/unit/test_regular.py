"""What another user may put in a file's place is not even opened."""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sched_ctl.drivers.liebre.counts import CountFile
from sched_ctl.kernel import hotspot
from sched_ctl.kernel.regular import NotRegular, open_regular

UNLOCK, NUMBER = 0x40045431, 0x80045430  # TIOCSPTLCK, TIOCGPTN of asm-generic/ioctls.h


@contextmanager
def terminal() -> Iterator[tuple[int, Path]]:
    """One side of a terminal that nobody has opened the other of, and where that is."""
    ours = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    try:
        fcntl.ioctl(ours, UNLOCK, struct.pack("i", 0))
        number = struct.unpack("i", fcntl.ioctl(ours, NUMBER, b"\0" * 4))[0]
        yield ours, Path(f"/dev/pts/{number}")
    finally:
        os.close(ours)


def was_opened(ours: int) -> bool:
    """Whether anybody had opened the other side, and closed it again."""
    try:
        os.read(ours, 1)
    except BlockingIOError:
        return False
    except OSError:  # EIO
        return True
    raise AssertionError


def test_a_device_is_left_closed_behind_a_descriptor() -> None:
    with terminal() as (ours, device):
        held = os.open(device, os.O_PATH)
        assert CountFile.of(os.getpid(), held) is None
        os.close(held)
        assert not was_opened(ours)
        os.close(os.open(device, os.O_RDONLY | os.O_NOCTTY))
        assert was_opened(ours)


def test_a_device_is_left_closed_in_a_folder() -> None:
    with terminal() as (ours, device):
        folder = os.open(device.parent, os.O_RDONLY)
        with pytest.raises(hotspot.AttachError, match="not a file of the Java process"):
            hotspot._own_file(device.name, folder, os.getuid())
        os.close(folder)
        assert not was_opened(ours)


def test_a_file_is_read_and_a_link_is_followed_only_if_it_may_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "link").symlink_to("file")
    folder = os.open(tmp_path, os.O_RDONLY)
    for found in (
        open_regular(str(tmp_path / "link")),
        open_regular("link", folder),
        open_regular("file", folder, follow=False),
    ):
        assert os.read(found, 9) == b"text"
        os.close(found)
    with pytest.raises(NotRegular):
        open_regular("link", folder, follow=False)
    with pytest.raises(FileNotFoundError):
        open_regular("other", folder)
    os.close(folder)
    with pytest.raises(hotspot.AttachError):
        hotspot._own_file(str(tmp_path / "file"), 0, os.getuid() + 1)
