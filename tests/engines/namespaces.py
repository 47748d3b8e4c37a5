"""Processes in namespaces of their own, as containers and other machines have them."""

import subprocess
from pathlib import Path

from support import wait_until

__all__ = ["CONTAINER", "UNSHARED", "cable", "child"]

# Waits for its network, and has a /tmp of its own, where Java makes the socket by which it is asked
# for its threads: one that lies in ours, of another process 1, it could not replace. The checkout
# may be below /tmp, so what has a plain name there stays in reach.
CONTAINER = """
ip link set lo up
until ip -o -4 addr show dev eth0 2>/dev/null | grep -q inet; do sleep 0.05; done
mount --rbind /tmp /mnt && mount -t tmpfs tmpfs /tmp && ln -s /mnt/* /tmp || exit
exec "$@"
"""
UNSHARED = ("unshare", "--net", "--pid", "--mount-proc", "--uts", "--ipc", "--fork")


def cable(first: int, second: int, addresses: tuple[str, str]) -> None:
    """Between the network namespaces of two processes."""

    def inside(pid: int, *command: str) -> None:
        subprocess.run(
            ["nsenter", f"--net=/proc/{pid}/ns/net", "ip", *command], check=True, timeout=10
        )

    link = ("link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns")
    inside(first, *link, str(second))
    for pid, address in zip((first, second), addresses, strict=True):
        inside(pid, "link", "set", "eth0", "up")
        inside(pid, "addr", "add", f"{address}/24", "dev", "eth0")


def child(pid: int) -> int:
    """What a wrapper has started inside."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    (found,) = wait_until(lambda: path.read_text().split(), 10, "the first process inside")
    return int(found)
