"""Who is at the other end of a TCP connection on this machine: sock_diag(7).

TCP has no SO_PEERCRED, but the kernel knows every socket's owner and answers for a single one by
its addresses (inet_diag, linux/inet_diag.h), some 20 us a question.
"""

import socket
import struct
from contextlib import suppress

__all__ = ["SocketOwners"]

NETLINK_SOCK_DIAG = 4  # linux/netlink.h
SOCK_DIAG_BY_FAMILY = 20  # linux/sock_diag.h
NLM_F_REQUEST = 1
NLMSG_ERROR = 2
ANY_STATE = 0xFFFFFFFF
NO_COOKIE = 0xFFFFFFFF
HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
QUESTION = struct.Struct("=BBBxI")  # the head of struct inet_diag_req_v2, before its socket id
PORTS = struct.Struct("!HH")
PLACE = struct.Struct("=III")  # interface and cookie
# struct inet_diag_msg: 4 bytes, the socket id of 48, then expires, rqueue, wqueue, uid, inode.
ANSWER = struct.Struct("=52xIIIII")


class SocketOwners:
    """Answers for the network namespace that the calling thread is in when it makes one."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG)
        self._socket.settimeout(1.0)
        self._sequence = 0

    def of_peer(self, connection: socket.socket) -> int | None:
        """User id of the process that holds the other end, or None.

        None: it is on another machine, in another namespace, or has closed its end: the kernel
        gives out sockets without a process as root's, and these must not pass for it.
        """
        with suppress(OSError, struct.error):
            return self._ask(connection)
        return None

    def _ask(self, connection: socket.socket) -> int | None:
        family = connection.family
        peer, here = connection.getpeername(), connection.getsockname()
        question = (
            QUESTION.pack(family, socket.IPPROTO_TCP, 0, ANY_STATE)
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
        if kind == NLMSG_ERROR:
            return None
        *_, uid, inode = ANSWER.unpack_from(answer, HEADER.size)
        return int(uid) if inode else None

    def close(self) -> None:
        self._socket.close()
