"""Packages from Debian's archive, unpacked and not installed.

apt does the work in a state of its own: the machine's sources and package lists are not touched.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Archive", "ArchiveError", "archive", "cache", "release"]

MIRROR = "http://deb.debian.org"


class ArchiveError(Exception):
    """Nothing came from the archive; the text says why."""


@dataclass(frozen=True)
class Archive:
    """One suite. tree: what was unpacked so far, below the root it is meant for."""

    tree: Path
    apt: Sequence[str]

    def names(self, pattern: str) -> list[str]:
        """Packages whose names match this regular expression."""
        command = ["apt-cache", *self.apt, "search", "--names-only", pattern]
        return [line.split()[0] for line in _run(command, self.tree.parent).splitlines()]

    def unpack(self, *packages: str) -> None:
        work = self.tree.parent
        _run(["apt-get", *self.apt, "-q", "download", *packages], work)
        for file in work.glob("*.deb"):
            _run(["dpkg-deb", "-x", str(file), str(self.tree)], work)
            file.unlink()

    def unpack_all(self, *packages: str) -> None:
        """Those and all that they need, as a root whose dpkg knows them. No script is run."""
        work = self.tree.parent
        options = ("-q", "-y", "--no-install-recommends", "--download-only")
        _run(["apt-get", *self.apt, *options, "install", *packages], work)
        # base-files first: it has the links from /bin and /lib to /usr, and the others keep them.
        files = sorted(
            (work / "archives").glob("*.deb"),
            key=lambda file: (not file.name.startswith("base-files_"), file.name),
        )
        status = []
        for file in files:
            with tempfile.TemporaryFile() as content:
                pack = ["dpkg-deb", "--fsys-tarfile", str(file)]
                subprocess.run(pack, stdout=content, check=True)
                content.seek(0)
                unpack = ["tar", "-x", "--keep-directory-symlink", "-C", str(self.tree)]
                subprocess.run(unpack, stdin=content, check=True)
            about = _run(["dpkg-deb", "-f", str(file)], work)
            status.append(about.replace("\n", "\nStatus: install ok installed\n", 1))
            file.unlink()
        state = self.tree / "var/lib/dpkg"
        for folder in ("info", "updates", "triggers"):
            (state / folder).mkdir(parents=True, exist_ok=True)
        (state / "status").write_text("\n".join(status))


@contextlib.contextmanager
def archive(suite: str, beside: Path, architecture: str = "amd64") -> Iterator[Archive]:
    """A suite of the archive, in a temporary folder next to `beside`."""
    if not all(map(shutil.which, ("apt-get", "apt-cache", "dpkg-deb"))):
        raise ArchiveError("packages can only be fetched on Debian")
    try:
        beside.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArchiveError(f"there is no place for packages: {error}") from error
    with tempfile.TemporaryDirectory(dir=beside.parent, prefix="fetch-") as folder:
        work = Path(folder)
        (work / "tree").mkdir()
        apt = _apt(work, suite, architecture)
        _run(["apt-get", *apt, "-q", "update"], work)
        yield Archive(work / "tree", apt)


def cache() -> Path:
    """Where fetched things are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sched-ctl"


def release() -> str:
    """This machine's Debian, as a codename; empty if it is none."""
    with contextlib.suppress(OSError):
        lines = Path("/etc/os-release").read_text().splitlines()
        values = dict(line.split("=", 1) for line in lines if "=" in line)
        if values.get("ID", "").strip('"') == "debian":
            return values.get("VERSION_CODENAME", "").strip('"')
    return ""


def _apt(work: Path, suite: str, architecture: str) -> list[str]:
    """Options that give apt a state of its own below `work`, with one suite as its source."""
    (work / "lists" / "partial").mkdir(parents=True)
    (work / "archives" / "partial").mkdir(parents=True)
    (work / "status").touch()
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (work / "sources.list").write_text(
        f"deb [arch={architecture} signed-by={keyring}] {MIRROR}/debian {suite} main\n"
    )
    options = {
        "Dir::Etc::SourceList": work / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": work / "lists",
        "Dir::State::Status": work / "status",
        "Dir::Cache": work,
        "Dir::Cache::Archives": work / "archives",
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Update::Error-Mode": "any",  # an archive out of reach is no empty archive
        "APT::Sandbox::User": "root" if os.geteuid() == 0 else "",
    }
    return [f"-o{name}={value}" for name, value in options.items()]


def _run(command: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    except subprocess.TimeoutExpired as error:
        raise ArchiveError(f"{command[0]} took longer than {error.timeout:g} s") from error
    if done.returncode != 0:
        raise ArchiveError(f"{' '.join(command[:1])} failed: {done.stderr.strip()[-400:]}")
    return done.stdout
