"""Who wakes whom, as the graph of an engine that tells none.

Where operators hand tuples over through queues, the one that puts a tuple into an empty queue wakes
the one that takes it. A consumer that makes room wakes its producer, too, and locks and timers
wake anybody. So an edge counts only if it is a fair part of all wake-ups of its target, of two
directions the heavier one goes, and of a cycle the lightest edge. What two threads give each other
alike is a lock's, and counts only where it is most of what wakes the target: two sources of one
period contend at each tuple.
"""

from collections.abc import Collection, Mapping

__all__ = ["LEAST", "parts", "wake_graph"]

LEAST = 20  # wake-ups
NEW_SHARE, OLD_SHARE = 0.10, 0.05  # of the target's wake-ups: to become an edge, and to stay one
MOST = 0.5  # of the target's wake-ups: an edge, whatever its target gives back

Pair = tuple[int, int]


def wake_graph(
    counts: Mapping[Pair, int], threads: Collection[int], before: Collection[Pair] = ()
) -> dict[Pair, float]:
    """(who wakes, who is woken) -> part of the wake-ups that the first one gives. Free of cycles.

    counts: how often, by thread ids; others than `threads` are outside, such as interrupts (0).
    before: the edges at the last look, which stay for half as much as it takes to become one.
    """
    known, old = set(threads), set(before)
    inside = {
        (a, b): n for (a, b), n in counts.items() if a in known and b in known and a != b and n > 0
    }
    into: dict[int, int] = {}
    for (a, b), n in counts.items():
        if a != b and n > 0:
            into[b] = into.get(b, 0) + n
    fair = {
        (a, b): n
        for (a, b), n in inside.items()
        if n >= LEAST
        and (
            n >= MOST * into[b]
            or n - inside.get((b, a), 0) >= (OLD_SHARE if (a, b) in old else NEW_SHARE) * into[b]
        )
    }
    below: dict[int, set[int]] = {}
    for a, b in sorted(fair, key=lambda pair: (-fair[pair], pair)):
        if not _reaches(below, b, a):
            below.setdefault(a, set()).add(b)
    given = {a: sum(fair[a, b] for b in targets) for a, targets in below.items()}
    return {(a, b): fair[a, b] / given[a] for a, targets in below.items() for b in sorted(targets)}


def parts(edges: Collection[Pair]) -> list[set[int]]:
    """Threads that are connected, whatever the direction; each part by its smallest id."""
    found: list[set[int]] = []
    for pair in edges:
        joined = set(pair).union(*(part for part in found if part.intersection(pair)))
        found = [part for part in found if not part.intersection(pair)] + [joined]
    return sorted(found, key=min)


def _reaches(below: Mapping[int, Collection[int]], start: int, goal: int) -> bool:
    seen, todo = {start}, [start]
    while todo:
        at = todo.pop()
        if at == goal:
            return True
        fresh = [one for one in below.get(at, ()) if one not in seen]
        seen.update(fresh)
        todo += fresh
    return False
