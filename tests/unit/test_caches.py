"""Which CPUs share a last-level cache, as the kernel numbers them."""

from pathlib import Path

import numpy as np

from sched_ctl.kernel.scheduler import last_level_caches, members, queue_sets


def test_caches_go_by_the_numbers_of_cpus(tmp_path: Path) -> None:
    """CPU 1 is offline, so three online CPUs are numbers 0, 2 and 3."""
    (tmp_path / "possible").write_text("0-3\n")
    (tmp_path / "online").write_text("0,2-3\n")
    for cpu, level, shared in ((0, 2, "0"), (0, 3, "0-1"), (2, 3, "2-3"), (3, 3, "2-3")):
        folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{level}"
        folder.mkdir(parents=True)
        (folder / "level").write_text(f"{level}\n")
        (folder / "shared_cpu_list").write_text(f"{shared}\n")
    assert last_level_caches(tmp_path) == [0, -1, 1, 1]


def test_large_caches_are_divided_into_sets_of_queues() -> None:
    """Of at most 16 CPUs, evenly; where there would be too many sets, neighbours share one."""
    assert queue_sets([0, 0, 1, -1, 1], 16, 64) == [0, 0, 1, -1, 1]
    sets = queue_sets([0] * 40 + [-1] + [1] * 3, 16, 64)
    assert np.bincount([index for index in sets if index >= 0]).tolist() == [14, 13, 13, 3]
    assert sets[40] == -1
    many = queue_sets([cpu // 2 for cpu in range(260)], 16, 64)  # 130 caches
    assert set(many) == set(range(44))
    assert max(np.bincount(many)) <= 16
    assert queue_sets([], 16, 64) == []


def test_members_of_sets() -> None:
    assert members([0, -1, 1, 0], 4, 2).tolist() == [[1, 4], [3, 0], [0, 0], [0, 0]]
