"""Which CPUs share a last-level cache, as the kernel numbers them."""

from pathlib import Path

from sched_ctl.kernel.scheduler import last_level_caches


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
