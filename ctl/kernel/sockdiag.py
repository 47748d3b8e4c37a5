"""Connections: who is at the other end, and of TCP what waits to be read; sock_diag(7).

TCP has no SO_PEERCRED, but the kernel knows every socket's owner and answers for a single one by
its addresses (inet_diag, linux/inet_diag.h), some 20 us a question. So do all connections of a
network namespace, at once; where the kernel has no tcp_diag they are read from /proc/PID/net. (Not
through pyroute2: what it loads takes 10 MB, a fifth of the controller.)
"""

import io
import socket
import struct
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass

from sched_ctl.kernel import netns, procfs

__all__ = ["Connection", "Crowded", "SocketOwners", "connections", "inodes", "peers"]

Address = tuple[str, int]
# Data can wait to be read in these: net/tcp_states.h
OPEN = ESTABLISHED, CLOSE_WAIT = 1, 8  # the first one is that of a connected UDP socket, too
MAPPED = bytes(10) + b"\xff\xff"  # before an IPv4 address in IPv6's clothes
TABLES_SHARE = 0.2  # of a CPU that tables may take in which peers are looked up,
TABLES_BURST_S = 5.0  # over so long
MOST = 100_000  # connections of a namespace that are looked at: .1 s of CPU time

PROTOCOL = socket.IPPROTO_TCP
NETLINK_SOCK_DIAG = 4  # linux/netlink.h
SOCK_DIAG_BY_FAMILY = 20  # linux/sock_diag.h
NLM_F_REQUEST = 1
NLM_F_DUMP = 0x300
NLMSG_ERROR = 2
NLMSG_DONE = 3
LARGEST = 1 << 16  # bytes of a part of a dump; the kernel makes them of 32 kB at most
ANY_STATE = 0xFFFFFFFF
NO_COOKIE = 0xFFFFFFFF
HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
QUESTION = struct.Struct("=BBBxI")  # the head of struct inet_diag_req_v2, before its socket id
PORTS = struct.Struct("!HH")
PLACE = struct.Struct("=III")  # interface and cookie
SOCKET_ID = 48  # bytes; a dump has none in its question
# struct inet_diag_msg: 4 bytes, the socket id of 48, then expires, rqueue, wqueue, uid, inode.
ANSWER = struct.Struct("=52xIIIII")
# The same with family, state and, of the socket id, ports and addresses.
ENDS = struct.Struct("!BB2xHH16s16s12x")


class Crowded(Exception):
    """There are so many connections, whoever's, that those of one process are not looked for."""


class SocketOwners:
    """Answers for the network namespace that the calling thread is in when it makes one.

    Where the kernel has no tcp_diag it reads that namespace's tables of connections instead.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG)
        self._socket.settimeout(1.0)
        self._sequence = 0
        self._answers = False  # whether the kernel has told of any
        self._paid_s = 0.0  # CLOCK_MONOTONIC: until then what was read counts
        self._tables: list[io.FileIO] = []
        for name in ("tcp", "tcp6"):
            with suppress(OSError):  # they stay this namespace's, whoever reads them
                self._tables.append(io.FileIO(f"/proc/thread-self/net/{name}"))

    def of_peer(self, connection: socket.socket) -> int | None:
        """User id of the process that holds the other end, or None.

        None: it is on another machine, in another namespace, or has closed its end: the kernel
        gives out sockets without a process as root's, and these must not pass for it.
        """
        with suppress(OSError, ValueError, struct.error):
            ends = connection.family, connection.getsockname(), connection.getpeername()
            found = self._ask(*ends)
            if found is None and not self._answers:  # there is none, or nobody who tells
                found = self._look_up(*ends)
            if found is not None:
                uid, inode = found
                return uid if inode else None
        return None

    def _ask(self, family: int, here: Address, peer: Address) -> tuple[int, int] | None:
        """User and inode, as the kernel answers."""
        question = (
            QUESTION.pack(family, PROTOCOL, 0, ANY_STATE)
            + PORTS.pack(peer[1], here[1])
            + socket.inet_pton(family, peer[0]).ljust(16, b"\0")
            + socket.inet_pton(family, here[0]).ljust(16, b"\0")
            + PLACE.pack(0, NO_COOKIE, NO_COOKIE)
        )
        self._sequence += 1
        size = HEADER.size + len(question)
        header = HEADER.pack(size, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, self._sequence, 0)
        self._socket.send(header + question)
        while True:
            answer = self._socket.recv(4096)
            _, kind, _, sequence, _ = HEADER.unpack_from(answer)
            if sequence == self._sequence:  # not a late answer to an earlier question
                break
        if kind == NLMSG_ERROR:  # ENOENT as well where there is no tcp_diag
            return None
        self._answers = True
        *_, uid, inode = ANSWER.unpack_from(answer, HEADER.size)
        return int(uid), int(inode)

    def _look_up(self, family: int, here: Address, peer: Address) -> tuple[int, int] | None:
        """The same by the tables; None, too, while they have cost too much: anybody may fill them,
        and connect again and again.
        """
        now_s = time.monotonic()
        if now_s < self._paid_s:
            return None
        began_s = time.thread_time()
        try:
            for table in self._tables:
                found = _row(_again(table), family, peer, here)
                if found is not None:
                    # The next one is probably of the same kind, and in the same table.
                    self._tables.sort(key=lambda other: other is not table)
                    return found
        finally:
            spent_s = (time.thread_time() - began_s) / TABLES_SHARE
            self._paid_s = max(self._paid_s, now_s - TABLES_BURST_S) + spent_s
        return None

    def close(self) -> None:
        self._socket.close()
        for table in self._tables:
            table.close()


def _again(file: io.FileIO) -> bytes:
    file.seek(0)
    content = b""
    while len(content) < netns.TABLE_LIMIT and (part := file.read(1 << 16)):
        content += part
    return content


def _row(table: bytes, family: int, here: Address, there: Address) -> tuple[int, int] | None:
    """User and inode of the socket with these ends, of /proc/net/tcp or tcp6."""
    for dressed in (b"", MAPPED) if family == socket.AF_INET else (b"",):  # as Java makes them
        ends = [
            b"%s:%04X" % (netns.digits(dressed + socket.inet_pton(family, host)).encode(), port)
            for host, port in (here, there)
        ]
        _, known, rest = table.partition(b" %s %s " % (ends[0], ends[1]))
        if known:
            fields = rest.partition(b"\n")[0].split()  # from the state on
            return int(fields[4]), int(fields[6])
    return None


@dataclass(frozen=True, slots=True)
class Connection:
    """One end of a TCP connection. waiting: bytes that have come and that nobody has read yet."""

    inode: int
    here: Address
    there: Address
    waiting: int


def inodes(pid: int) -> set[int]:
    """The sockets that a process holds open. Raises OSError if that may not be read."""
    held = (path for _, path in procfs.open_files(pid) if path.startswith("socket:["))
    return {int(path[8:-1]) for path in held}


def connections(pid: int, own: Collection[int]) -> list[Connection]:
    """Those of these sockets that are, in the network namespace of a process.

    Raises OSError if it is gone or closed to us, Crowded.
    """
    with netns.entered(pid):
        found = _asked(own)
    return list(_tabled(pid, own)) if found is None else found


def peers(pid: int, own: Collection[int]) -> dict[int, Address]:
    """Who is at the other end, by socket: of TCP connections, and of UDP sockets with one place
    that they send to, as those of a resolver. Raises as `connections`.
    """
    found = {one.inode: one.there for one in connections(pid, own)}
    with suppress(Crowded), netns.entered(pid):
        found |= {one.inode: one.there for one in _asked(own, socket.IPPROTO_UDP) or ()}
    return found


def _asked(own: Collection[int], protocol: int = socket.IPPROTO_TCP) -> list[Connection] | None:
    """As the kernel answers in the calling thread's namespace; None where it does not, as without
    the module tcp_diag or udp_diag.
    """
    found, left = [], MOST
    with (
        suppress(OSError),
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as asked,
    ):
        asked.settimeout(1.0)
        for family in (socket.AF_INET, socket.AF_INET6):
            states = sum(1 << state for state in OPEN)
            question = QUESTION.pack(family, protocol, 0, states) + bytes(SOCKET_ID)
            size = HEADER.size + len(question)
            flags = NLM_F_REQUEST | NLM_F_DUMP
            asked.send(HEADER.pack(size, SOCK_DIAG_BY_FAMILY, flags, family, 0) + question)
            for answer in _parts(asked, family):
                if (left := left - 1) < 0:
                    raise Crowded(f"more than {MOST} connections")
                if ANSWER.unpack_from(answer)[-1] in own:
                    found.append(_connection(answer))
    return found if left < MOST else None


def _parts(asked: socket.socket, sequence: int) -> Iterator[memoryview]:
    """The messages of a dump, without their heads, netlink(7)."""
    while True:
        part = memoryview(asked.recv(LARGEST))
        while len(part) >= HEADER.size:
            size, kind, _, of, _ = HEADER.unpack_from(part)
            if of == sequence and kind in (NLMSG_DONE, NLMSG_ERROR):
                return
            if not HEADER.size <= size <= len(part):
                return
            if of == sequence and kind == SOCK_DIAG_BY_FAMILY:
                answer = part[HEADER.size : size]
                if len(answer) >= ANSWER.size:  # else an error, where there is no tcp_diag
                    yield answer
            part = part[size + -size % 4 :]


def _connection(answer: memoryview) -> Connection:
    family, state, *ports, source, target = ENDS.unpack_from(answer)
    length = 4 if family == socket.AF_INET else 16
    here, there = (
        (_plain(socket.inet_ntop(family, place[:length])), port)
        for place, port in zip((source, target), ports, strict=True)
    )
    _, waiting, _, _, inode = ANSWER.unpack_from(answer)
    return Connection(inode, here, there, _unread(waiting, state))


def _tabled(pid: int, own: Collection[int]) -> Iterator[Connection]:
    for table in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):
            for line in procfs.lines(f"/proc/{pid}/net/{table}", netns.TABLE_LIMIT)[1:]:
                fields = line.split()
                if len(fields) <= 9 or (state := int(fields[3], 16)) not in OPEN:
                    continue
                if (inode := int(fields[9])) in own:
                    waiting = int(fields[4].split(":")[1], 16)
                    here, there = (_address(field) for field in fields[1:3])
                    yield Connection(inode, here, there, _unread(waiting, state))


def _unread(waiting: int, state: int) -> int:
    """Without the end of the stream, which the kernel counts as a byte until it is read (RFC 9293,
    3.4: a FIN has a sequence number).
    """
    return max(0, waiting - 1) if state == CLOSE_WAIT else waiting


def _address(text: str) -> Address:
    digits, port = text.split(":")
    return _plain(netns.host_of(netns.packed(digits))), int(port, 16)


def _plain(host: str) -> str:
    """An IPv4 address without IPv6's clothes, as Java makes them."""
    return host.removeprefix("::ffff:") if "." in host else host
