"""The folder of a fleet without Spark: by what a file system answers."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from sched_ctl.pipeline.store import Batch, Fleet


class Place:
    """A folder as Hadoop shows it, and its status."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def getPath(self) -> "Place":  # noqa: N802  Hadoop's
        return self

    def getParent(self) -> "Place":  # noqa: N802
        return Place(self.path.parent)

    def getName(self) -> str:  # noqa: N802
        return self.path.name


class Disk:
    def globStatus(self, pattern: str) -> list[Place]:  # noqa: N802  Hadoop's
        return [Place(path) for path in sorted(Path("/").glob(pattern.removeprefix("/")))]

    def delete(self, place: Place, _: bool) -> None:
        place.path.rmdir()


@pytest.mark.parametrize(
    ("since", "left"),
    [
        ({"operator": "2026-01-02"}, ["1 operator", "2 hour"]),
        ({"operator": "2026-01-02", "hour": "2026-01-02"}, []),
    ],
)
def test_rows_of_an_older_fleet_stay_as_long_as_roll_ups(
    since: dict[str, str], left: list[str], tmp_path: Path
) -> None:
    """Which are made of them there each time."""
    fleet: Any = object.__new__(Fleet)
    fleet.out, fleet._fs, fleet._path = str(tmp_path), Disk(), str
    fleet._old = lambda _: True
    fleet.batches = [Batch(folder="1", layout=1), Batch(folder="2", layout=2, since=since)]
    for name in ("1/kind=operator", "2/kind=operator", "2/kind=hour"):
        (tmp_path / f"data/batch={name}/date=2026-01-01").mkdir(parents=True)
    fleet._clean_dates()
    found = sorted(tmp_path.glob("data/*/*/date=*"))
    assert [f"{p.parts[-3][-1]} {p.parts[-2].removeprefix('kind=')}" for p in found] == left
