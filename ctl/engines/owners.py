"""Whose engine is it? What one user says never moves another user's threads.

An engine is its main process's user's, and only threads of that user's processes count as its
threads. Engines whose owners the machine's administrator answers for (root, the system's own
users, and those that the setting `users` names) are ordered together; every other user's are
ordered among themselves, in a *domain* of their own. An engine in a pod of Kubernetes is its
namespace's, whatever its uid: root in a container is nobody's administrator, and all pods may have
one uid. A domain's name is "" for the common one, and the uid, as text, or "pod:NAMESPACE" for the
rest.
"""

import functools
import pwd
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from sched_ctl.config.settings import SettingError
from sched_ctl.kernel import containers, procfs
from sched_ctl.kernel.containers import Container
from sched_ctl.model.patterns import fits
from sched_ctl.model.topology import HelperThread, Thread, Topology

__all__ = ["COMMON", "Owners", "belonging", "called", "first_user", "scope", "user"]

COMMON = ""
POD = "pod:"
LOGIN_DEFS = Path("/etc/login.defs")
FIRST_USER = 1000  # where login.defs does not say


class Owners:
    """Who is ordered with whom. Raises SettingError for a user that does not exist."""

    def __init__(self, users: Iterable[str] = ()) -> None:
        self._first_user = first_user()
        self._pods = tuple(name for name in users if name.startswith(POD))
        self._named = frozenset(_uid(name) for name in users if not name.startswith(POD))

    def domain(self, uid: int | None, container: Container | None = None) -> str:
        """None: nobody on this machine; the administrator has named the engine by its address."""
        if container is not None and container.pod:
            if self._names_pod(container):
                return COMMON
            return POD + (container.namespace or container.pod)
        if uid is None or uid < self._first_user or uid in self._named:
            return COMMON
        return str(uid)

    def believed(self, uid: int) -> bool:
        """Whether the administrator answers for this user."""
        return self.domain(uid) == COMMON

    def why(self, uid: int | None, container: Container | None = None) -> str:
        """What the engines of this user, or pod, are ordered with, and why, in words."""
        if container is not None and container.pod:
            if self._names_pod(container):
                return "with all: its pod is among the setting 'users'"
            whose = called(self.domain(uid, container))
            return f"among {whose}'s own alone (the setting 'users' would change that)"
        if uid is None:
            return "with all: named by its address, it runs on another machine"
        if uid == 0:
            return "with all: root's"
        if uid < self._first_user:
            return "with all: a system user's"
        if uid in self._named:
            return "with all: its user is among the setting 'users'"
        return f"among user {user(uid)}'s own alone (the setting 'users' would change that)"

    def _names_pod(self, container: Container) -> bool:
        return bool(container.names) and fits(self._pods, *container.names)


def scope(rule: str, domain: str) -> str:
    """What a rule's schedule of a domain is called."""
    return rule if domain == COMMON else f"{rule}@{domain}"


def called(domain: str) -> str:
    """Whose engines a domain holds, in words."""
    if not domain.startswith(POD):
        return f"user {user(int(domain))}"
    whose = domain.removeprefix(POD)
    return f"{'pod' if containers.is_uid(whose) else 'namespace'} {whose}"


def belonging(
    topology: Topology,
    uid: int,
    owner: Callable[[int], int | None] = procfs.owner,
    namespace: str = "",
    namespace_of: Callable[[int], str] = containers.namespace_of,
) -> Topology:
    """The topology without threads that are not this user's, or that nobody may name.

    namespace: of the engine's pod; "": it is in none, and no thread of a pod is its.
    The very same object where all are. Those left out stand in the notes.
    """
    owners: dict[int, int | None] = {}
    elsewhere: dict[int, str] = {}
    foreign: dict[Thread, str] = {}

    def keeps(thread: Thread) -> bool:
        if thread.pid not in owners:
            owners[thread.pid] = owner(thread.pid)
            elsewhere[thread.pid] = namespace_of(thread.pid)
        whose, where = owners[thread.pid], elsewhere[thread.pid]
        if whose is None and thread.pid > 1:  # it has ended, nothing can be set
            return True
        if thread.pid > 1 and whose == uid and where == namespace:
            return True
        if thread.pid > 1 and whose == uid:
            foreign[thread] = f"in {called(POD + where) if where else 'no pod'}"
            return False
        foreign[thread] = "the machine's own" if thread.pid <= 1 else f"user {user(whose or 0)}'s"
        return False

    operators = tuple(
        operator
        if all(map(keeps, operator.threads))
        else replace(operator, threads=tuple(filter(keeps, operator.threads)))
        for operator in topology.operators
    )
    helpers: tuple[HelperThread, ...] = tuple(h for h in topology.helpers if keeps(h.thread))
    if not foreign:
        return topology
    thread, whose = next(iter(foreign.items()))
    note = (
        f"{len(foreign)} threads are left alone, thread {thread.tid} for one: they are {whose}, "
        f"and the engine is user {user(uid)}'s"
    )
    return replace(topology, operators=operators, helpers=helpers, notes=(*topology.notes, note))


@functools.lru_cache(1024)
def user(uid: int) -> str:
    """The user's name; the number where there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def first_user(path: Path = LOGIN_DEFS) -> int:
    """The lowest uid of a person; those below are the system's, login.defs(5)."""
    try:
        found = re.search(r"^UID_MIN\s+(\d{1,9})\s*$", path.read_text(), re.MULTILINE)
    except (OSError, UnicodeDecodeError):
        return FIRST_USER
    return int(found[1]) if found else FIRST_USER


def _uid(name: str) -> int:
    if name.isdecimal():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise SettingError(
            ("users",), f"there is no user {name!r}", "names or uids of users of this machine"
        ) from None
