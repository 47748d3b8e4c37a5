"""Network namespaces: whose sockets a process listens on, and how to make one beside it.

A socket belongs for life to the namespace in which it was made, so entering an engine's
namespace is needed only for the moment of connecting, and only by the calling thread (setns(2)
acts on one thread).
"""

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sched_ctl.kernel import procfs

__all__ = [
    "TABLE_LIMIT",
    "Listener",
    "digits",
    "entered",
    "host_of",
    "listeners",
    "listening_uid",
    "packed",
    "same_network",
]

CLONE_NEWNET = 0x40000000  # linux/sched.h
TCP_LISTEN = "0A"  # net/tcp_states.h, as /proc/net/tcp prints it
DENIED = (
    "not permitted to enter its network namespace, as of a container: needs CAP_SYS_ADMIN "
    "(the service: with containers.conf, docs/security.md)"
)
OF_ANOTHER = "not permitted to enter the network namespace of another user's process: run as root"
TABLE_LIMIT = 1 << 24  # bytes of /proc/PID/net/tcp that are read

_libc = ctypes.CDLL(None, use_errno=True)
_libc.setns.argtypes = [ctypes.c_int, ctypes.c_int]


@dataclass(frozen=True, slots=True, order=True)
class Listener:
    """A listening TCP socket, and the address at which its own machine reaches it."""

    port: int
    host: str


def same_network(pid: int, other: int | None = None) -> bool:
    """True if the process shares another's network namespace; None: the calling thread's."""
    beside = "thread-self" if other is None else str(other)
    return Path(f"/proc/{pid}/ns/net").stat() == Path(f"/proc/{beside}/ns/net").stat()


@contextmanager
def entered(pid: int | None) -> Iterator[None]:
    """The calling thread is in the network namespace of process `pid` inside the block.

    None, or a process that shares our namespace, changes nothing. Raises OSError (with the path)
    if the process is gone or we may not enter.
    """
    if pid is None or _is_ours(pid):
        yield
        return
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        path = f"/proc/{pid}/ns/net"
        other = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _setns(other, path)
        finally:
            os.close(other)
        try:
            yield
        finally:
            _setns(home, "/proc/thread-self/ns/net")
    finally:
        os.close(home)


def _is_ours(pid: int) -> bool:
    try:
        return same_network(pid)
    except PermissionError as error:  # of /proc/PID/ns: whom we may not trace
        raise PermissionError(error.errno, OF_ANOTHER, error.filename) from None


def _setns(descriptor: int, path: str) -> None:
    if _libc.setns(descriptor, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        # EPERM: no CAP_SYS_ADMIN, or systemd's RestrictNamespaces.
        raise OSError(number, DENIED if number == errno.EPERM else os.strerror(number), path)


def listeners(pid: int) -> tuple[Listener, ...]:
    """TCP sockets on which the process listens, in its own network namespace, by port.

    Sockets bound to all addresses are given as loopback. Raises OSError if the process is gone
    or its descriptors may not be read.
    """
    inodes = {path[8:-1] for _, path in procfs.open_files(pid) if path.startswith("socket:[")}
    found = {
        Listener(port, _reachable(address))
        for address, port, _, inode in _listening(f"/proc/{pid}/net")
        if inode in inodes
    }
    return tuple(sorted(found))


def listening_uid(port: int, host: str | None = None) -> int | None:
    """Whose process listens at the port in our own network namespace, or None.

    host: at this address, as a number. Users may share a port: 127.0.0.2 is anybody's, too.
    """
    tables = ("tcp6",) if host is not None and ":" in host else ("tcp", "tcp6")
    for address, other, uid, _ in _listening("/proc/thread-self/net", tables):
        if other == port and (host is None or _bound(address) in (host, None)):
            return uid
    return None


def _listening(
    folder: str, tables: tuple[str, ...] = ("tcp", "tcp6")
) -> Iterator[tuple[str, int, int, str]]:
    """Address, port, uid and inode of each listening TCP socket of a namespace."""
    for table in tables:
        with suppress(FileNotFoundError):
            for line in procfs.lines(f"{folder}/{table}", TABLE_LIMIT)[1:]:
                fields = line.split()
                if len(fields) > 9 and fields[3] == TCP_LISTEN:
                    address, port = fields[1].split(":")
                    yield address, int(port, 16), int(fields[7]), fields[9]


def _reachable(address: str) -> str:
    return _bound(address) or "127.0.0.1"  # IPv6 wildcards take IPv4 as well, unless v6only


def _bound(address: str) -> str | None:
    """The address of a socket, None for all."""
    found = packed(address)
    if found[:-4] == bytes(10) + b"\xff\xff":
        found = found[-4:]  # an IPv4 address in IPv6's clothes, as Java makes them
    return host_of(found) if any(found) else None


def packed(digits: str) -> bytes:
    """An address that the kernel prints as 32-bit words, each in the machine's byte order."""
    words = [int(digits[i : i + 8], 16) for i in range(0, len(digits), 8)]
    return struct.pack(f"={len(words)}I", *words)


def digits(address: bytes) -> str:
    """What `packed` reads."""
    words = struct.unpack(f"={len(address) // 4}I", address)
    return "".join(f"{word:08X}" for word in words)


def host_of(address: bytes) -> str:
    return socket.inet_ntop(socket.AF_INET if len(address) == 4 else socket.AF_INET6, address)
