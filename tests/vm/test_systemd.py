"""The package's service under a real systemd, process 1 of a guest, from its start to its removal.

SCHED_CTL_SYSTEMD=1 ./dev test tests/vm/test_systemd.py
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import guest
import pytest
import releases
from labs import WORKLOADS

from sched_ctl.workloads.resolved import resolved_file

pytestmark = [
    pytest.mark.vm,
    pytest.mark.needs("root", "mmdebstrap", "cc", "clang"),
    pytest.mark.skipif("SCHED_CTL_SYSTEMD" not in os.environ, reason="needs SCHED_CTL_SYSTEMD=1"),
]

HERE = Path(__file__).parent
KERNEL = "6.18"
LIMIT_S = 1500.0
LATER = "9.9~deb13"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A Debian with systemd and the package, what its modules are compiled to, and a later one."""
    root, made = tmp_path / "tree", tmp_path / "made"
    root.mkdir()
    packed = releases.kept_root("trixie", "systemd-sysv", "libbpf1")
    subprocess.run(["tar", "-xf", packed, "-C", root], check=True)
    releases.run([HERE.parents[1] / "packaging" / "deb", made, "13"])
    [package] = made.glob("*.deb")
    shutil.copy(package, root / "root" / "first.deb")
    releases.run(["chroot", root, "dpkg", "-i", "/root/first.deb"])
    (root / "root" / "stats").write_bytes(resolved_file(WORKLOADS / "stats.graph"))
    shutil.copy(HERE / "systemd_inside.py", root / "root")
    library = root / "usr/lib/sched-ctl"
    names = [path.relative_to(library) for path in library.rglob("__pycache__")]
    releases.run(["tar", "-C", library, "-cf", root / "root" / "compiled.tar", *names])
    later = tmp_path / "later"
    releases.run(["dpkg-deb", "-R", package, later])
    control = later / "DEBIAN" / "control"
    lines = control.read_text().splitlines()
    control.write_text(
        "\n".join(f"Version: {LATER}" if line.startswith("Version:") else line for line in lines)
        + "\n"
    )
    releases.run(["dpkg-deb", "-Znone", "-b", later, root / "root" / "later.deb"])
    return root


@pytest.mark.timeout(2 * LIMIT_S)
def test_the_service_from_its_start_to_its_removal(
    tree: Path, vm: Callable[..., Any], kernel_image: Callable[[str], Path]
) -> None:
    kernel_image(KERNEL)
    inside = ("/usr/bin/python3", "/root/systemd_inside.py", "/root/later.deb")
    command = ["sh", str(HERE / "systemd_init.sh"), str(tree), *inside]
    options = {"memory": "2G", "timeout_s": LIMIT_S, "write": (tree,), "append": "pid1"}
    done = vm(KERNEL, *command, **options)
    print(done.output)
    assert done.returncode != guest.NO_GUEST, done.console
    assert done.returncode == 0, done.console
    assert "all is put back" in done.output
