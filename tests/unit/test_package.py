"""What `./dev package` refuses before it makes anything; what a package does with the service, with
a controller, and with what could not be put back."""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import releases

from sched_ctl import __version__
from sched_ctl.backends.undo.journal import Journal
from sched_ctl.backends.undo.records import Adopted

ROOT = Path(__file__).parents[2]
DEB = ROOT / "packaging" / "deb"
SCRIPT = re.compile(r"^cat >\"\$root/DEBIAN/(\w+)\" <<'SCRIPT'\n(.*?)^SCRIPT$", re.M | re.S)
# A service that is as systemd's files say, in a file.
SYSTEMCTL = """#!/bin/sh
case $1 in
show) cat {state} ;;
stop) echo inactive >{state} ;;
start) echo active >{state} ;;
esac
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("11",), "no Debian release '11': 12 or 13"),
        (("13", "mips"), "no architecture 'mips': amd64 or arm64"),
    ],
)
def test_what_it_cannot_make(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    out = tmp_path / "dist"
    done = subprocess.run([DEB, out, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert said in done.stderr
    assert not list(out.iterdir())


PYTHON = """#!/bin/sh
case $* in
-c*) echo 1.0 ;;
*" build "*) : >"$4/x.whl"; : >"$4/x.tar.gz" ;;
*" wheel "*) for last; do :; done; [ -e "$last" ] && mkdir "$8" && : >"$8/other.whl" ;;
*) printf '%s\\n' "$@" >given; exit 1 ;;
esac
"""


def checkout(folder: Path, script: str) -> Path:
    """With what the script runs in place of the venv's Python, and the script in it."""
    for name, text in ((".venv/bin/python", PYTHON), (script, (ROOT / script).read_text())):
        path = folder / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
        path.chmod(0o755)
    return folder / script


@pytest.mark.needs("cc")
def test_a_package_is_made_below_folders_with_spaces(tmp_path: Path) -> None:
    made, temporary = tmp_path / "a checkout", tmp_path / "a folder"
    temporary.mkdir()
    architecture = subprocess.check_output(["dpkg", "--print-architecture"], text=True).strip()
    words: list[str | Path] = [tmp_path / "the dist", "13", architecture, tmp_path / "x.whl"]
    subprocess.run(
        [checkout(made, "packaging/deb"), *words],
        env=os.environ | {"TMPDIR": str(temporary)},
        check=False,
    )
    given = (made / "given").read_text().splitlines()
    target = Path(given[given.index("--target") + 1])
    assert target.is_relative_to(temporary) and target.match("root/usr/lib/sched-ctl")
    assert given[-1] == f"{tmp_path}/x.whl[probes]"


@pytest.mark.needs("cc")
def test_a_release_hands_its_wheel_on_below_folders_with_spaces(tmp_path: Path) -> None:
    made = tmp_path / "a checkout"
    script = checkout(made, "packaging/release")
    (script.parent / "deb").write_text("#!/bin/sh\nprintf '%s\\n' $# \"$4\" >>given\n")
    (script.parent / "deb").chmod(0o755)
    subprocess.run([script, tmp_path / "the dist"], check=True, capture_output=True)
    given = (made / "given").read_text().splitlines()
    assert set(given[::2]) == {"4"}
    wheels = {Path(name).name for name in given[1::2]}
    kinds = [kind for kind in ("x86_64", "aarch64") if shutil.which(f"{kind}-linux-gnu-gcc")]
    assert wheels == {"x.whl", "other.whl"} if len(kinds) > 1 else wheels == {"x.whl"}
    assert {path.name for path in (tmp_path / "the dist").glob("*.whl")} == {"x.whl"}


@pytest.mark.needs("cc")
def test_bpf_objects_are_for_the_machine_that_the_compiler_is_for(tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho aarch64-linux-gnu\n")
    compiler.chmod(0o755)
    make = ["make", "-n", "-B", "-C", str(DEB.parents[1] / "bpf")]
    for words, kind in (([f"CC={compiler}"], "arm64"), (["CC=/nowhere/cc"], own_kind())):
        done = subprocess.run([*make, *words], capture_output=True, text=True, check=True)
        assert f"-D__TARGET_ARCH_{kind} " in done.stdout


def own_kind() -> str:
    return {"x86_64": "x86", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


class Machine:
    """On which the scripts of a package are run, in a folder: nothing else is changed."""

    def __init__(self, folder: Path, state: str) -> None:
        self.folder, self.state_file = folder, folder / "state"
        self.state_file.write_text(f"{state}\n")
        for name in ("bin", "run/systemd/system", "usr/lib/sched-ctl", "etc"):
            (folder / name).mkdir(parents=True)
        programs = {"systemctl": SYSTEMCTL.format(state=self.state_file)}
        for name in ("systemctl", "sched-ctl", "python3"):
            self.has(name, programs.get(name, "#!/bin/sh\n"))
        self.scripts: Mapping[str, str] = dict(SCRIPT.findall(DEB.read_text()))
        self.said = ""  # on standard error, by the last script

    def has(self, name: str, program: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(program)
        path.chmod(0o755)

    def runs(self, script: str, *words: str) -> str:
        """The service's state after dpkg has called a script."""
        text = re.sub(r"(?<![\w/])/(run|etc|usr|var)/", rf"{self.folder}/\1/", self.scripts[script])
        env = os.environ | {"PATH": f"{self.folder}/bin:{os.environ['PATH']}"}
        command = ["sh", "-c", text, script, *words]
        done = subprocess.run(command, env=env, stderr=subprocess.PIPE, text=True, check=True)
        self.said = done.stderr
        return self.state_file.read_text().strip()

    @property
    def marked(self) -> bool:
        return (self.folder / "run/sched-ctl.upgraded").exists()


@pytest.mark.parametrize("state", ["active", "activating", "reloading"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("upgrade", "9"), ("configure", "1")),
        (("upgrade", "9"), ("abort-upgrade", "9")),
        (("remove",), ("abort-remove",)),
        (("deconfigure", "in-favour", "x", "1"), ("abort-deconfigure", "in-favour", "x", "1")),
    ],
)
def test_a_service_that_ran_runs_again(
    state: str, before: tuple[str, ...], after: tuple[str, ...], tmp_path: Path
) -> None:
    """Also where the disk was full, and dpkg has put the old version back."""
    machine = Machine(tmp_path, state)
    assert machine.runs("prerm", *before) == "inactive"
    assert machine.runs("postinst", *after) == "active"
    assert not machine.marked


def test_a_service_that_was_stopped_stays_so(tmp_path: Path) -> None:
    """What an upgrade that failed has left is not taken for a word about the next one."""
    machine = Machine(tmp_path, "active")
    machine.runs("prerm", "upgrade", "2")
    machine.state_file.write_text("inactive\n")  # the machine's owner: systemctl stop
    assert machine.runs("prerm", "upgrade", "3") == "inactive"
    assert machine.runs("postinst", "configure", "1") == "inactive"


def test_an_upgrade_that_the_later_version_goes_on_with(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "active")
    machine.runs("prerm", "upgrade", "2")
    machine.runs("prerm", "failed-upgrade", "1")
    assert machine.runs("postinst", "configure", "1") == "active"


def test_a_removed_one_is_not_started_when_it_is_installed_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "active")
    (tmp_path / "run/sched-ctl").mkdir()
    machine.runs("prerm", "remove")
    machine.runs("postrm", "remove")
    assert machine.runs("postinst", "configure") == "inactive"
    assert (tmp_path / "run/sched-ctl").exists()
    machine.runs("postrm", "purge")
    assert not (tmp_path / "run/sched-ctl").exists()


@pytest.mark.parametrize("record", [None, Adopted(1, 2, 3, nice=0)])
def test_purging_keeps_the_journal_of_what_could_not_be_put_back(
    record: Adopted | None, tmp_path: Path
) -> None:
    machine = Machine(tmp_path, "inactive")
    journal = Journal(tmp_path / "run/sched-ctl/journal")
    journal.write([] if record is None else [record])
    journal.close()
    fails = "unload" if record is None else "*"
    said = "echo error: not put back: $* >&2; exit 3"
    machine.has("sched-ctl", f"#!/bin/sh\ncase $1 in {fails}) {said} ;; esac\n")
    machine.runs("prerm", "remove")
    assert machine.said == ("" if record is None else "error: not put back: restore\n")
    machine.runs("postrm", "remove")
    machine.runs("postrm", "purge")
    assert journal.path.exists() == (record is not None)
    assert ("sched-ctl/journal tells of it, and stays" in machine.said) == (record is not None)


@pytest.mark.parametrize("words", [("upgrade", "9"), ("remove",)])
def test_a_controller_that_the_service_did_not_start_is_ended(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    """Its files are replaced, or go."""
    machine = Machine(tmp_path, "inactive")
    asked = f"#!/bin/sh\necho $* >>{tmp_path}/asked\n"
    machine.has("sched-ctl", asked + "[ $1 = restore ] || { echo none answers >&2; exit 1; }\n")
    machine.runs("prerm", *words)
    assert (tmp_path / "asked").read_text() == "unload\nrestore\n"
    assert not machine.said
    machine.has("sched-ctl", asked)
    machine.runs("prerm", *words)
    assert (tmp_path / "asked").read_text() == "unload\nrestore\n" * 2
    assert "ended a controller that the service did not start" in machine.said


def test_the_image_has_the_latest_of_the_packages(tmp_path: Path) -> None:
    text = (ROOT / "packaging" / "Containerfile").read_text()
    [chosen] = re.findall(r"\$\(.*?\.deb.*?\)(?=\" )", text)
    (tmp_path / "dpkg").write_text("#!/bin/sh\necho amd64\n")
    (tmp_path / "dpkg").chmod(0o755)
    for version in ("0.2.0", "0.10.0", "0.9.0"):
        for kind in ("deb12_amd64", "deb13_arm64", "deb13_amd64"):
            (tmp_path / f"sched-ctl_{version}~{kind}.deb").touch()
    command = f'echo "{chosen}"'.replace("/tmp/", f"{tmp_path}/")
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "-c", command], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{tmp_path}/sched-ctl_0.10.0~deb13_amd64.deb\n"


@pytest.mark.parametrize(
    ("page", "times"),
    [
        ("README.md", 2),
        ("docs/boards.md", 1),
        ("CONTRIBUTING.md", 1),
        ("packaging/kubernetes.yaml", 1),
    ],
)
def test_whoever_names_the_version_names_this_one(page: str, times: int) -> None:
    named = re.findall(r"(?:sched[-_]ctl[-_:]|tag -s v)(\d+\.\d+\.\d+)", (ROOT / page).read_text())
    assert named == times * [__version__]


def test_what_needs_packages_of_pypi_is_skipped_by_that_name_where_none_are_had(
    tmp_path: Path,
) -> None:
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "--isolated")
    nobody = ("--retries", "1", "--index-url", "http://127.0.0.1:9/simple")
    fetch = (*pip, "download", "--no-deps", *nobody, "-d", tmp_path, "msgspec")
    with pytest.raises(pytest.skip.Exception, match="needs PyPI"):
        releases.run(fetch)
    with pytest.raises(AssertionError, match="no such option"):
        releases.run([*pip, "--wrong"])
    later = (
        "echo 'Retrying after connection broken by ...' >&2; echo 'error: no such file' >&2; exit 1"
    )
    with pytest.raises(AssertionError, match="no such file"):
        releases.run(["sh", "-c", later])
