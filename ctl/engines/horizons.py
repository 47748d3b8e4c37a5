"""What an engine told a while ago, so that verdicts can be of more than the last moments.

Of each horizon a few answers are kept, with what verdicts are made of and nothing else.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from sched_ctl.metrics.verdicts import NEEDED
from sched_ctl.model.topology import Snapshot

__all__ = ["HORIZONS_S", "Horizons"]

HORIZONS_S = (30.0, 300.0)  # beside the shortest, which the controller keeps for its policies
KEPT = 6  # a horizon
STALE = 1.5  # horizons: nobody looked meanwhile


@dataclass
class Horizons:
    _kept: dict[float, deque[Snapshot]] = field(
        default_factory=lambda: {seconds: deque() for seconds in HORIZONS_S}
    )

    def note(self, snapshot: Snapshot) -> None:
        """An answer, with the times of the threads."""
        slim: Snapshot | None = None
        for seconds, kept in self._kept.items():
            while kept and snapshot.time_s - kept[0].time_s > STALE * seconds:
                kept.popleft()
            if kept and snapshot.time_s - kept[-1].time_s < seconds / KEPT:
                continue
            slim = slim or _slim(snapshot)
            kept.append(slim)
            while len(kept) > 1 and snapshot.time_s - kept[1].time_s >= seconds:
                kept.popleft()

    def then(self, seconds: float) -> Snapshot | None:
        """The one to compare the last answer with: so old, or the oldest there is."""
        kept = self._kept[seconds]
        return kept[0] if kept else None

    def carry(self, over: Callable[[Snapshot], Snapshot]) -> None:
        """Make each one of another topology."""
        for seconds, kept in self._kept.items():
            self._kept[seconds] = deque(map(over, kept))

    def clear(self) -> None:
        for kept in self._kept.values():
            kept.clear()


def _slim(snapshot: Snapshot) -> Snapshot:
    columns, logical = (
        {name: column for name, column in table.items() if name in NEEDED}
        for table in (snapshot.columns, snapshot.logical)
    )
    return Snapshot(snapshot.topology, snapshot.time_s, columns, logical)
