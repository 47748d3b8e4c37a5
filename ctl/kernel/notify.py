"""What a service manager is told, sd_notify(3): that we are ready, alive, reloading, stopping.

Nothing happens where no manager asked for it by $NOTIFY_SOCKET. And which process is a service.
"""

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress

from sched_ctl.kernel import procfs

__all__ = ["is_managed", "notify", "reloading", "service_of", "watchdog_s"]


def notify(*states: str, environment: Mapping[str, str] = os.environ) -> None:
    """Tell the manager, for example "READY=1". A manager that does not listen is no error."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.setblocking(False)  # one that does not read must not hold us up
        manager.connect("\0" + address[1:] if address.startswith("@") else address)
        manager.send("\n".join(states).encode())


def is_managed(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a service manager has started this process, and starts it again when it fails."""
    return "NOTIFY_SOCKET" in environment


def watchdog_s(environment: Mapping[str, str] = os.environ) -> float | None:
    """How often the manager wants a sign of life of this process (s); None: not at all."""
    try:
        every_s = int(environment.get("WATCHDOG_USEC", "")) / 1e6
        ours = int(environment.get("WATCHDOG_PID", str(os.getpid()))) == os.getpid()
    except ValueError:
        return None
    return every_s if ours and every_s > 0 else None


def reloading() -> None:
    """Tell that a configuration is being read; "READY=1" is to follow."""
    notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")


def service_of(pid: int) -> str | None:
    """The service of systemd that the process is the main one of; None if it is of none.

    What a shell started belongs to the cgroup of a service, too, such as that of sshd or cron.
    """
    try:
        environment = procfs.text(f"/proc/{pid}/environ").split("\0")
        groups = procfs.lines(f"/proc/{pid}/cgroup")
    except OSError:
        return None
    units = [name for name in (group.rpartition("/")[2] for group in groups) if _is_service(name)]
    return units[0] if units and f"SYSTEMD_EXEC_PID={pid}" in environment else None


def _is_service(name: str) -> bool:
    return name.endswith(".service") and name.isprintable()
