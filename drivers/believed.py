"""Whose engine a name means, where processes of several users look like it.

Any user may start what looks like another's engine. So those go first whom the administrator
answers for: or anybody could be in the way of an engine that the configuration names.
"""

from collections.abc import Callable, Iterable

__all__ = ["Believed", "nobody", "rank", "whose"]

Believed = Callable[[int], bool]  # whether the administrator answers for a user


def nobody(_: int) -> bool:
    """But root, as long as the configuration is not known."""
    return False


def rank(uid: int, believed: Believed, pod: str = "") -> int:
    """Root goes first, then those who are believed, then all others.

    pod: of the process, "" for none: what is root in a pod is nobody's administrator.
    """
    if pod:
        return 2
    return 0 if uid == 0 else 1 if believed(uid) else 2


def whose(ranks: Iterable[tuple[int, int]]) -> int | None:
    """The user who goes first; None where several do, or there is none. ranks: (user, rank)."""
    known = set(ranks)
    first = min((its for _, its in known), default=None)
    found = {uid for uid, its in known if its == first}
    return found.pop() if len(found) == 1 else None
