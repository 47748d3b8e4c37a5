"""Who may have how many of what there is only so much of: one user never has all of it."""

from collections import Counter

__all__ = ["Room", "domain_of"]


def domain_of(scope: str) -> str:
    """Whose a schedule is: "" for those that are ordered together; see `engines.owners.scope`."""
    _, at, domain = scope.rpartition("@")
    return domain if at else ""


class Room:
    """Of `count`, a domain with a name may have a quarter, and all of these together three."""

    def __init__(self, count: int) -> None:
        self.of_one, self._of_all = count // 4, count * 3 // 4
        self._held: Counter[str] = Counter()

    def has(self, domain: str) -> bool:
        """Whether the domain may have one more, if there is one."""
        held = self._held
        return not domain or (held[domain] < self.of_one and held.total() < self._of_all)

    def take(self, domain: str) -> None:
        if domain:
            self._held[domain] += 1

    def give_back(self, domain: str) -> None:
        if domain:
            self._held[domain] -= 1
            self._held += Counter()  # forgets those that have none
