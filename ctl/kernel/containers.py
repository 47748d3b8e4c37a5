"""In which container and pod a process runs, by what root alone can have written.

A process's cgroup tells the container's id and the pod's uid: the path down to it counts if nobody
but root could have made a folder there, for a user may call a cgroup of his own anything. Names
come from files of root's: what the kubelet keeps logs in, podman's and docker's own notes. Nobody
is asked; a name that is not of the form that its runtime demands is none.
"""

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from sched_ctl.kernel import cgroup

__all__ = ["Container", "is_container", "is_uid", "namespace_of", "of"]

T = TypeVar("T")

POD_LOGS = Path("/var/log/pods")  # NAMESPACE_POD_UID/CONTAINER/
CONTAINER_LOGS = Path("/var/log/containers")  # POD_NAMESPACE_CONTAINER-ID.log
PODMAN = Path("/var/lib/containers/storage")  # DRIVER-containers/containers.json
DOCKER = Path("/var/lib/docker/containers")  # ID/config.v2.json
ROOT = 0
MOST_BYTES = 4 << 20
MOST_ENTRIES = 10_000  # of a folder that are looked at

# A static pod's uid is a hash; systemd's names have "_" where a uid has "-".
POD = re.compile(
    r"(?:[a-z0-9-]+-)?pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?"
)
CONTAINER = re.compile(r"(?:(?:cri-containerd|crio|docker|libpod)-)?([0-9a-f]{64})(?:\.scope)?")
LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"  # RFC 1123
POD_NAME = r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?"
POD_LOG = re.compile(rf"({LABEL})_({POD_NAME})_([-0-9a-f]{{32,36}})")
CONTAINER_LOG = re.compile(rf"{POD_NAME}_{LABEL}_({LABEL})-([0-9a-f]{{64}})\.log")
CONTAINER_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,254}")


@dataclass(frozen=True, slots=True)
class Container:
    """id, pod: as the runtime calls them; "" where there is none. The rest is "" if not known."""

    id: str = ""
    pod: str = ""
    namespace: str = ""  # of the pod
    pod_name: str = ""
    name: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """What it may be called, the most exact last; empty where no name is known."""
        if not self.pod:
            return (f"container:{self.name}",) if self.name else ()
        if not self.pod_name:
            return ()
        pod = f"pod:{self.namespace}/{self.pod_name}"
        return (pod, f"{pod}/{self.name}") if self.name else (pod,)

    @property
    def told(self) -> str:
        """For whoever reads it."""
        return self.names[-1] if self.names else f"container {self.id[:12]}".strip()


class _Kept(msgspec.Struct):
    """A line of containers.json, or config.v2.json."""

    id: str = ""
    names: tuple[str, ...] = ()
    Name: str = ""


def of(pid: int) -> Container | None:
    """The container of a process; None if it is in none, or gone. Some file reads: not for a pass.

    Of containers in containers the outermost.
    """
    uid, number = _identity(pid)
    if not uid and not number:
        return None
    if not uid:
        return Container(number, name=_podman(number) or _docker(number))
    namespace, pod_name = _pod(uid)
    name = _logged(number) or _only(POD_LOGS / f"{namespace}_{pod_name}_{uid}")
    return Container(number, uid, namespace, pod_name, name)


def namespace_of(pid: int) -> str:
    """The Kubernetes namespace of a process; its pod's uid where that is not known; "": no pod."""
    uid, _ = _identity(pid)
    return (_pod(uid)[0] or uid) if uid else ""


def is_container(name: str) -> bool:
    """Whether a cgroup of this name is one that a runtime makes for a container."""
    return CONTAINER.fullmatch(name) is not None


def is_uid(text: str) -> bool:
    """Whether it is a pod's, and no namespace's name."""
    return POD.fullmatch(f"pod{text}") is not None


def _identity(pid: int) -> tuple[str, str]:
    """The pod's uid and the container's id, "" where there is none."""
    for found in cgroup.hierarchies():
        try:
            folder = found.folder_of(pid, pid, any_name=True)  # or he would hide his pod
        except (OSError, ValueError):
            continue
        if folder is not None:
            mine = _in_path(found.mount, folder.relative_to(found.mount).parts)
            if any(mine):
                return mine
    return "", ""


def _in_path(mount: Path, parts: Sequence[str]) -> tuple[str, str]:
    uid, above = "", mount
    for part in parts:
        if not _roots_alone(above):  # who may write there made what is below
            break
        pod, container = POD.fullmatch(part), CONTAINER.fullmatch(part)
        if pod and not uid:
            uid = pod[1].replace("_", "-")
        elif container:
            return uid, container[1]
        above = above / part
    return uid, ""


def _pod(uid: str) -> tuple[str, str]:
    """Namespace and name of a pod; "" where nobody tells, or two do."""
    found = {
        (match[1], match[2])
        for name in _names(POD_LOGS)
        if (match := POD_LOG.fullmatch(name)) and match[3] == uid and _roots_alone(POD_LOGS / name)
    }
    return found.pop() if len(found) == 1 else ("", "")


def _logged(number: str) -> str:
    found = (CONTAINER_LOG.fullmatch(name) for name in _names(CONTAINER_LOGS) if number in name)
    return next((match[1] for match in found if match and match[2] == number), "")


def _only(folder: Path) -> str:
    """The container of a pod that has one."""
    names = _names(folder)
    return names[0] if len(names) == 1 and re.fullmatch(LABEL, names[0]) else ""


def _podman(number: str) -> str:
    for driver in _names(PODMAN):
        if driver.endswith("-containers"):
            for kept in _read(PODMAN / driver / "containers.json", tuple[_Kept, ...]) or ():
                if kept.id == number:
                    return _named(kept.names[0] if kept.names else "")
    return ""


def _docker(number: str) -> str:
    kept = _read(DOCKER / number / "config.v2.json", _Kept)
    return "" if kept is None else _named(kept.Name.removeprefix("/"))


def _named(name: str) -> str:
    return name if CONTAINER_NAME.fullmatch(name) else ""


def _names(folder: Path) -> list[str]:
    """What is in a folder of root's; empty if it is not."""
    if not _roots_alone(folder):
        return []
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry, _ in zip(entries, range(MOST_ENTRIES), strict=False)]
    except OSError:
        return []


def _roots_alone(folder: Path) -> bool:
    """Whether it is a folder, not a link, in which root alone makes anything."""
    try:
        found = folder.lstat()
    except (OSError, ValueError):
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == ROOT and not found.st_mode & 0o022


def _read(path: Path, form: type[T]) -> T | None:
    if not _roots_alone(path.parent):
        return None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            found = os.fstat(fd)
            if (
                not stat.S_ISREG(found.st_mode)
                or found.st_uid != ROOT
                or found.st_size > MOST_BYTES
            ):
                return None
            return msgspec.json.decode(file.read(MOST_BYTES), type=form)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
