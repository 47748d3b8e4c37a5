"""What `./dev release` makes, installed and used on fresh roots of Debian and Ubuntu."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from releases import PYTHON, SUITES, UBUNTU, kept_root, run

from sched_ctl import __version__

pytestmark = [pytest.mark.host, pytest.mark.needs("root", "mmdebstrap", "cc")]


@pytest.fixture(scope="module", params=SUITES)
def fresh(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, str]]:
    """A root just unpacked, and its suite."""
    suite: str = request.param
    root = tmp_path_factory.mktemp(suite)
    subprocess.run(["tar", "-xf", kept_root(suite), "-C", root], check=True)
    yield root, suite
    shutil.rmtree(root)


def inside(root: Path, script: str) -> str:
    """What a shell prints that has this root and processes of its own."""
    mounts = "mount -t proc proc $0/proc && mount --rbind --make-rslave /sys $0/sys"
    devices = "mount --bind /dev/null $0/dev/null && mount -t tmpfs none $0/tmp"
    within = f'{mounts} && {devices} && exec chroot $0 sh -euc "$1"'
    own = ["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child"]
    environment = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "COLUMNS=80", "HOME=/root"]
    return run([*environment, *own, "sh", "-euc", within, root, script])


def works(root: Path, before: str, program: str) -> None:
    """What somebody types first who has just installed it."""
    said = inside(root, f"{before}; {program} --version; {program} check; {program} policies")
    assert f"sched-ctl {__version__}\n" in said
    assert "nice" in said
    assert "light-first" in said


def test_all_of_it_or_nothing(release: Path) -> None:
    names = {path.name for path in release.iterdir()} - {"note.txt", "SHA256SUMS"}
    packages = {f"sched-ctl_{__version__}~deb{PYTHON[suite][0]}_amd64.deb" for suite in SUITES}
    assert packages | {f"sched_ctl-{__version__}.tar.gz"} <= names
    [wheel] = [name for name in names if name.endswith(".whl")]
    assert wheel.startswith(f"sched_ctl-{__version__}-py3-none-linux_")
    sums = (release / "SHA256SUMS").read_text().split()[1::2]
    assert {name.removeprefix("*") for name in sums} == names
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=release, check=True)
    assert not [path for path in release.iterdir() if path.name.startswith(".")]


def test_package_on_a_fresh_debian(release: Path, fresh: tuple[Path, str]) -> None:
    root, suite = fresh
    package = f"sched-ctl_{__version__}~deb{PYTHON[suite][0]}_amd64.deb"
    shutil.copy(release / package, root / "root")
    before = files(root)
    works(root, f"dpkg -i /root/{package}", "sched-ctl")
    demo = "sched-ctl demo --phases 2 --phase 1 --out /tmp/demo --json"
    assert '"ratio"' in inside(root, demo)
    assert (root / "usr/share/man/man1/sched-ctl-load.1.gz").exists()
    inside(root, "dpkg -P sched-ctl")
    assert files(root) - before == set()


def files(root: Path) -> set[str]:
    """What bears the program's name."""
    found = subprocess.run(
        ["find", root, "-xdev", "-iname", "*sched[-_]ctl*"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(found.stdout.split())


@pytest.mark.parametrize("fresh", UBUNTU[:1], indirect=True)
def test_wheel_on_a_fresh_ubuntu(release: Path, fresh: tuple[Path, str]) -> None:
    """The wheel is one for all, and the packages hold it for both Debians."""
    root, _ = fresh
    python = UBUNTU[1]
    glibc = [f"manylinux_2_{minor}_x86_64" for minor in (17, 24, 27, 28)]
    there = ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}"]
    for platform in ("linux_x86_64", "manylinux2014_x86_64", *glibc):
        there += ["--platform", platform]
    [wheel] = release.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    to: list[str | Path] = [
        "-c",
        Path(__file__).parents[2] / "constraints.txt",
        "-d",
        root / "root" / "wheels",
    ]
    run([*pip, "download", *there, *to, wheel])
    venv = "python3 -m venv /opt/sched-ctl"
    install = "/opt/sched-ctl/bin/pip -q install --no-index --find-links /root/wheels sched-ctl"
    works(root, f"{venv}; {install}", "/opt/sched-ctl/bin/sched-ctl")
