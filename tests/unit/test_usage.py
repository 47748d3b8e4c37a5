"""docs/usage.md against the program."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from msgspec import Struct
from typer.testing import CliRunner

from sched_ctl.cli import make_app, name_of
from sched_ctl.config.files import load
from sched_ctl.config.settings import Elastic, Section, Setting, Settings, Switch, declared
from sched_ctl.model.access import Access
from sched_ctl.model.options import BackendOptions, by_name
from sched_ctl.model.targets import Target
from sched_ctl.sim.setting import SCHEDULERS

STRUCTS: tuple[type[Struct], ...] = (Settings, Section, Switch, Elastic, Access, Target)
CGROUPS = ("cgroup1", "cgroup2", "cgroup1+nice", "cgroup2+nice")
TEXT = (Path(__file__).parents[2] / "docs" / "usage.md").read_text()


def own(struct: type[Struct]) -> list[Setting]:
    """But for what a section has from the setting of the same name and meaning."""
    above = {(setting.key, setting.description) for setting in declared(Settings)}
    return [
        setting
        for setting in declared(struct)
        if struct is not Section or (setting.key, setting.description) not in above
    ]


def test_every_setting_is_described_as_declared() -> None:
    for struct in STRUCTS:
        for setting in own(struct):
            [line] = [
                line
                for line in _section(struct).splitlines()
                if line.startswith(f"| `{setting.key}` |")
            ]
            assert setting.description in line, f"docs/usage.md: {setting.key}"
            assert in_words(setting.bounds) in line, f"docs/usage.md: {setting.key}"
            if struct is Settings and setting.flag != "--" + setting.key.replace("_", "-"):
                assert f"(`{setting.flag}`)" in line


def test_no_setting_is_described_that_is_not_there() -> None:
    for struct in STRUCTS:
        described = re.findall(r"^\| `(\w+)` \|", _section(struct), re.MULTILINE)
        assert described == [setting.key for setting in own(struct)]


def test_what_a_section_takes_from_the_settings_is_named() -> None:
    named = re.findall(r"`(\w+)`", _section(Section).partition("mean what they mean above")[0])
    taken = {setting.key for setting in declared(Section)} - {at.key for at in own(Section)}
    assert taken <= set(named)


def test_every_option_of_a_backend_is_described_as_declared() -> None:
    section = TEXT.partition("### Options of backends")[2].partition("\n## ")[0]
    scx, _, others = section.partition("Of the others")
    described = {("scx", key): line for key, line in rows(scx)} | {
        (name, key): line for key, line in rows(others) for name in names_in(line.split(" | ")[1])
    }
    options = {
        (name, option.key): option
        for name, struct in by_name(BackendOptions()).items()
        for option in declared(type(struct))
    }
    assert described.keys() == options.keys()
    for at, option in options.items():
        assert option.description in described[at], at
        assert in_words(option.bounds) in described[at], at
        default = str(option.default)
        default = (
            default.lower() if isinstance(option.default, bool) else default.removesuffix(".0")
        )
        assert f"| `{default}`" in described[at], at


def in_words(bounds: str) -> str:
    return re.sub(r"≥ (\S+), ≤ (\S+)", r"\1..\2", bounds)


def rows(table: str) -> list[tuple[str, str]]:
    lines = re.findall(r"^\| `.*$", table, re.MULTILINE)
    return [(line.split("`")[1], line) for line in lines]


def names_in(cell: str) -> list[str]:
    return [*re.findall(r"`([^`]+)`", cell), *(CGROUPS if "cgroups" in cell.split(", ") else ())]


def _section(struct: type[Struct]) -> str:
    titles: dict[type[Struct], str] = {
        Settings: "### Settings",
        Section: "### `[[policy]]` sections",
        Switch: "### `[[policy.switch]]` tables",
        Target: "### `[[target]]` sections",
        Elastic: "### `[[elastic]]` sections",
        Access: "### `[access.ENGINE]` tables",
    }
    return TEXT.partition(titles[struct])[2].partition("\n### ")[0]


def test_every_command_is_described() -> None:
    names = {name_of(command) or "" for command in make_app().registered_commands}
    table = TEXT.partition("## Commands")[2].partition("Some uses of")[0]
    described = re.findall(r"^\| `(\w+)[ `]", table, re.MULTILINE)
    assert sorted(described) == sorted(names | {"fleet", "policy"})


def test_the_example_file_is_a_valid_configuration(tmp_path: Path) -> None:
    text = TEXT.partition("## Configuration\n")[2].partition("Patterns are")[0]
    example = "\n".join(line for line in text.splitlines() if line.startswith("    "))
    path = tmp_path / "example.toml"
    path.write_text(example)
    settings = load(path)
    assert [section.policy for section in settings.policy] == ["qs", "hr"]
    assert settings.policy[1].shares == {"gold*": 4, "*": 1}
    assert tomllib.loads(example)["backends"] == {"nice": {"worst": 15}}


def said_by(code: str) -> str:
    """What a Python of its own says, which has imported nothing before."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_is_quick_and_light() -> None:
    code = (
        "import sys; sys.argv = ['sched-ctl', '--help']\n"
        "from sched_ctl.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'httpx', 'matplotlib', 'asyncio', 'pyspark', 'pandas', 'pyarrow'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    assert "explain" in said_by(code)


def test_who_names_a_kind_of_engine_loads_no_other() -> None:
    """Each takes memory and time of a gateway: 3 MB together, a sixth of what a start costs.

    Nor is the backend scx loaded before it is taken.
    """
    code = (
        "import sys\n"
        "from sched_ctl.config.settings import Settings\n"
        "from sched_ctl.engines.roster import wanted_kinds\n"
        "from sched_ctl.plugins import drivers\n"
        "from sched_ctl.service import session\n"
        "wanted_kinds(Settings(engine=('lab',)), drivers.drivers())\n"
        "others = 'flink', 'spark', 'storm', 'liebre', 'kernel', 'program', 'sources.http'\n"
        "heavy = {*(f'sched_ctl.drivers.{name}' for name in others), 'httpcore', 'h11', 'anyio'}\n"
        "heavy |= {'rich', 'httpx', 'pydantic', 'pandas', 'pyroute2', 'numpy.random'}\n"
        "heavy.add('sched_ctl.backends.scx.backend')\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert 'sched_ctl.drivers.lab.driver' in sys.modules\n"
    )
    said_by(code)


def test_help_of_flags_names_no_type() -> None:
    """As in "--json <bool>" which reads as if a value had to be given."""
    for arguments in ([], ["simulate"], ["policy"], ["policy", "set"], ["load"]):
        shown = CliRunner().invoke(make_app(), [*arguments, "--help"]).stdout
        assert "--help" in shown and "bool" not in shown, shown


def test_help_names_every_scheduler_that_can_be_simulated() -> None:
    shown = CliRunner().invoke(make_app(), ["simulate", "--help"]).stdout
    assert all(name in shown for name in SCHEDULERS)
