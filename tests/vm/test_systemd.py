"""The package's service under a real systemd, process 1 of a guest, from its start to its removal.

On both kinds of machine: arm64 is emulated, too.

SCHED_CTL_SYSTEMD=1 ./dev test tests/vm/test_systemd.py
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import guest
import kernels
import pytest
import qemu
import releases
import roots
from labs import WORKLOADS

from sched_ctl.workloads.resolved import resolved_file

pytestmark = [
    pytest.mark.vm,
    pytest.mark.needs("root", "mmdebstrap", "cc", "clang"),
    pytest.mark.skipif("SCHED_CTL_SYSTEMD" not in os.environ, reason="needs SCHED_CTL_SYSTEMD=1"),
]

HERE = Path(__file__).parent
KERNELS = ("6.18", "6.18-arm64")
LIMIT_S = 3600.0
LATER = "9.9~deb13"
ROOT_NEEDS = ("systemd-sysv", "libbpf1")


@pytest.fixture
def tree(kernel: str, kernel_image: Callable[[str], Path], tmp_path: Path) -> Path:
    """A Debian with systemd, the package, what its modules are compiled to, and a later one."""
    kernel_image(kernel)
    architecture, made = kernels.matrix(kernel).architecture, tmp_path / "made"
    own = tmp_path / "tree"
    own.mkdir()
    releases.run(["tar", "-xf", releases.kept_root("trixie", *ROOT_NEEDS), "-C", own])
    root = own
    if architecture != qemu.OWN:
        root = tmp_path / architecture
        releases.run(["cp", "-a", roots.root(architecture, *ROOT_NEEDS), root])
        # No script of its packages has run, and the journal wants the users that they add.
        for name in ("passwd", "group", "shadow", "gshadow"):
            shutil.copy(own / "etc" / name, root / "etc" / name)
    releases.run([HERE.parents[1] / "packaging" / "deb", made, "13", architecture], LIMIT_S)
    [package] = made.glob("*.deb")
    shutil.copy(package, root / "root" / "first.deb")
    (root / "root" / "stats").write_bytes(resolved_file(WORKLOADS / "stats.graph"))
    shutil.copy(HERE / "systemd_inside.py", root / "root")
    compiled(package, own, root / "root" / "compiled.tar")
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


def compiled(package: Path, own: Path, out: Path) -> None:
    """What its modules are compiled to by that root's Python, for any kind of machine."""
    releases.run(["dpkg-deb", "-x", package, own / "made"])
    library = own / "made/usr/lib/sched-ctl"
    inside = ("-s", "/made", "-p", "/", "/made/usr/lib/sched-ctl")
    releases.run(["chroot", own, "python3", "-m", "compileall", "-q", *inside])
    names = [path.relative_to(library) for path in library.rglob("__pycache__")]
    releases.run(["tar", "-C", library, "-cf", out, *names])
    shutil.rmtree(own / "made")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.timeout(2 * LIMIT_S)
def test_the_service_from_its_start_to_its_removal(
    kernel: str, tree: Path, vm: Callable[..., Any]
) -> None:
    inside = ("/usr/bin/python3", "/root/systemd_inside.py", "/root/first.deb", "/root/later.deb")
    command = ["sh", str(HERE / "systemd_init.sh"), str(tree), *inside]
    options = {"memory": "2G", "timeout_s": LIMIT_S, "write": (tree,), "append": "pid1"}
    done = vm(kernel, *command, **options)
    print(done.output)
    assert done.returncode != guest.NO_GUEST, done.console
    assert done.returncode == 0, done.console
    assert "all is put back" in done.output
