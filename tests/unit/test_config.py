import math
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sched_ctl.backends import ladder
from sched_ctl.config.dump import dump
from sched_ctl.config.files import MAX_BYTES, load, origin, parse_pairs
from sched_ctl.config.settings import (
    ConfigError,
    Section,
    SettingError,
    Settings,
    declared,
    resolve,
)
from sched_ctl.errors import UserError
from sched_ctl.model.access import Access
from sched_ctl.model.options import (
    BackendOptions,
    Cgroup2Options,
    GroupOptions,
    NiceOptions,
    ScxOptions,
    by_name,
)
from sched_ctl.service.sections import check_sections


def written(folder: Path, text: str, name: str = "sched-ctl.toml") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("periud = 1", "periud", "did you mean period"),
        ("period = 'a'", "period", "time from one pass"),
        ("period = -1", "period", "≥ 0.001"),
        ("period = nan", "period", None),
        ("stale_after = inf", "stale_after", None),
        ('record = "a\\u0000b"', "record: a NUL", None),
        ("level = 'top'", "level", "physical"),
        ("queries = 1", "queries", r"belongs in a \[\[policy\]\]"),
        ("policy = 'hr'", "policy: Expected `array`", r"a line \[\[policy\]\]"),
        ("[[policy]]\nwindow = 1", r"policy\[0\].window", r"belongs outside \[\[policy\]\]"),
        ("[[policy]]\n[[policy]]\nname='x'\nperod = 1", r"policy\[1\].perod", "period"),
        ("[[policy]]\nqueries = 'a'", r"policy\[0\].queries", None),
        ("policy = []", "policy", "at least one"),
        ("[[policy]]\n[[policy]]", "two .* named auto", "name = "),
        ("shares = {a = -1}", "shares", None),
        (
            "[[policy]]\n[[policy.switch]]\npolicy = 'qs'\nmetric = 'pressure'\nabov = 1",
            r"policy\[0\].switch\[0\].abov",
            "did you mean above",
        ),
        ("[access.flink]\ncaa = 'x'", "access.flink.caa", "did you mean ca"),
        ("[access.flink]\nwindow = 'x'", "access.flink.window", "known keys: ca, "),
        ("backends.nic.best = 1", "backends.nic", "did you mean nice"),
        ("backends.nice.bst = 1", "backends.nice.bst", "did you mean best"),
        ("backends.nice.best = 'x'", "backends.nice.best: Expected `int`", "best, ≥ -20, ≤ 19"),
        ("backends.'cgroup1+nice'.best = 20", r"backends.cgroup1\+nice.best: ", "least nice"),
        ("backends.scx.caps = {a = 0}", r"backends.scx.caps\[...\]: .*>= 1", "caps: how many"),
        ("backends = {nice = 3}", "backends", None),
        ("period = ", r"line 1|end of document", "TOML"),
        ("period = 1\nperiod = 2", "overwrite", "TOML"),
    ],
)
def test_bad_input_names_file_and_key(
    tmp_path: Path, text: str, key: str, hint: str | None
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=f"^{path}: .*({key})") as caught:
        load(path)
    if hint is not None:
        import re

        assert re.search(hint, caught.value.hint or ""), caught.value.hint


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="directory"):
        load(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"engine = ['\xe9']")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(tmp_path / "latin.toml")
    for text in ("a = " + "[" * 10_000, "period = " + "9" * 5000):  # beyond Python's limits
        with pytest.raises(ConfigError, match=r"deep\.toml: "):
            load(written(tmp_path, text, "deep.toml"))
    (tmp_path / "huge.toml").write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="larger than"):
        load(tmp_path / "huge.toml")


@pytest.mark.parametrize("closed", [".", "sched-ctl.d"])
def test_a_folder_that_is_closed_to_us_is_named(
    closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))  # pytest's own is closed to others
    try:
        folder.chmod(0o755)
        monkeypatch.setattr("sched_ctl.config.files.DEFAULT_FILE", folder / "sched-ctl.toml")
        written(folder / "sched-ctl.d", "period = 2.0", "10.toml")
        (folder / closed).chmod(0)
        before = os.geteuid()
        os.seteuid(before or 65534)
        try:
            with pytest.raises(ConfigError, match=f"^{folder}.*: Permission denied"):
                load()
        finally:
            os.seteuid(before)
    finally:
        (folder / closed).chmod(0o755)
        shutil.rmtree(folder)


def test_an_error_in_a_drop_in_names_the_drop_in(tmp_path: Path) -> None:
    path = written(tmp_path, "period = 1.0")
    drop_in = written(tmp_path / "sched-ctl.d", "window = 'x'", "10.toml")
    with pytest.raises(ConfigError, match=f"^{drop_in}: window"):
        load(path)


def test_what_an_editor_hides_beside_a_drop_in_is_not_read(tmp_path: Path) -> None:
    path = written(tmp_path, "period = 1.0")
    drop_in = written(tmp_path / "sched-ctl.d", "period = 2.0", "10.toml")
    (drop_in.parent / ".#10.toml").symlink_to("root@here.4711:1")
    written(drop_in.parent, "window = 'half a l", ".10.toml")
    assert load(path).period == 2.0
    assert origin(path, {}, ("period",)) == f"{drop_in}: period"


def test_precedence(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "period = 2.0\nwindow = 3.0\nstale_after = 4.0\nbackends.nice.worst = 5\n"
        "[[policy]]\nname = 'a'\npolicy = 'qs'\nperiod = 9.0\n[[policy]]\npolicy = 'hr'\n",
    )
    written(tmp_path / "sched-ctl.d", "window = 30.0\nstale_after = 31.0\n", "10.toml")
    written(
        tmp_path / "sched-ctl.d",
        "stale_after = 40.0\nbackends.nice.best = 1\n"
        "[[policy]]\nname = 'a'\npolicy = 'fcfs'\n[[policy]]\nname = 'new'\npolicy = 'rb'\n",
        "20.toml",
    )
    written(tmp_path / "sched-ctl.d", "nonsense", "ignored.txt")
    settings = load(path)
    assert (settings.period, settings.window, settings.stale_after) == (2.0, 30.0, 40.0)
    assert settings.backends.nice == NiceOptions(worst=5, best=1)
    assert [(b.name, b.policy) for b in settings.policy] == [
        ("new", "rb"),
        ("a", "fcfs"),
        ("", "hr"),
    ]
    assert [b.period for b in resolve(settings)] == [2.0, 9.0, 2.0]
    flagged = load(path, {"period": 0.5, "window": 7.0})
    assert [b.period for b in resolve(flagged)] == [0.5, 0.5, 0.5]
    assert flagged.window == 7.0
    other = load(path, {"policy": [{"policy": "random"}]})
    assert [b.policy for b in other.policy] == ["random"]
    with pytest.raises(ConfigError, match=r"^command line: period"):
        load(path, {"period": -1.0})


def test_a_drop_in_leaves_the_other_queries_to_the_usual_rule(tmp_path: Path) -> None:
    path = written(tmp_path, "period = 2.0")
    one = "[[policy]]\npolicy = 'qs'\nqueries = ['etl*']\n"
    written(tmp_path / "sched-ctl.d", one, "10.toml")
    rules = [(rule.name, rule.policy, rule.queries) for rule in load(path).policy]
    assert rules == [("", "qs", ("etl*",)), ("", "auto", ("*",))]
    written(tmp_path / "sched-ctl.d", "[[policy]]\nname = 'auto'\npolicy = 'hr'", "50.toml")
    rules = [(rule.name, rule.policy, rule.queries) for rule in load(path).policy]
    assert rules == [("", "qs", ("etl*",)), ("auto", "hr", ("*",))]
    path.write_text("[[policy]]\npolicy = 'fcfs'")
    assert [rule.policy for rule in load(path).policy] == ["hr", "qs", "fcfs"]


@pytest.mark.parametrize(
    ("text", "policies"),
    [
        ("policy = 'hr'", ["hr"]),
        ("policy = 'hr'\nqueries = ['etl', '*']\nengines = ['*']", ["hr"]),
        ("policy = 'hr'\nqueries = ['*', '!etl']", ["hr", "auto"]),
        ("policy = 'hr'\nengines = ['flink:*']", ["hr", "auto"]),
    ],
)
def test_there_is_no_usual_rule_where_a_drop_in_leaves_it_nothing(
    tmp_path: Path, text: str, policies: list[str]
) -> None:
    """With two rules `policy set` has to be told which is meant."""
    path = written(tmp_path, "period = 2.0")
    written(tmp_path / "sched-ctl.d", f"[[policy]]\n{text}", "10.toml")
    assert [rule.policy for rule in load(path).policy] == policies
    path.write_text("[[policy]]\npolicy = 'auto'")  # the file's own stays
    assert [rule.policy for rule in load(path).policy] == ["hr", "auto"]


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(
            policy=(
                Section(name="a", policy="qs", queries=("x*", 'quo"te\\'), shares={"a b": 2.5}),
                Section(policy="multi-class", options={"classes": {"high": "fcfs"}, "n": 1}),
            ),
            engine=("flink:127.0.0.1:8081",),
            backends=BackendOptions(
                nice=NiceOptions(best=0, worst=5),
                cgroup1=GroupOptions(max_groups=7),
                cgroup1_nice=GroupOptions(best=0, max_groups=7),  # worst is not that of nice
                scx=ScxOptions(caps={"etl*": 2, 'a "b"': 1}, ttl=3.0),
            ),
            shares={"etl*": 4.0},
            helpers={"gc": "top"},
            exclude=("ünïcode",),
            period=1 / 3,
        ),
    ],
)
def test_what_config_prints_reads_back_equal(tmp_path: Path, settings: Settings) -> None:
    assert load(written(tmp_path, dump(settings))) == settings


def test_config_shows_the_options_of_backends(tmp_path: Path) -> None:
    settings = Settings(backends=BackendOptions(cgroup1_nice=GroupOptions(best=3)))
    text = dump(settings)
    assert load(written(tmp_path, text)) == settings
    assert '\n[backends."cgroup1+nice"]\n' in text and "\nbest = 3\n" in text
    for name, options in by_name(settings.backends).items():
        shown = text.partition(f"backends.{name}]")[2] or text.partition(f'backends."{name}"]')[2]
        for option in declared(type(options)):
            assert option.key in shown.partition("[backends.")[0], f"{name}.{option.key}"
    # The comments are the file with all defaults
    bare = dump(Settings())
    plain = re.sub(r"^# (\[backends\..*\]|\w+ = .*)$", r"\1", bare, flags=re.MULTILINE)
    assert set(re.findall(r"^\[backends\.(.*)\]$", plain, re.MULTILINE)) == {
        f'"{name}"' if "+" in name else name for name in by_name(BackendOptions())
    }
    assert load(written(tmp_path, plain)) == Settings()


def test_every_setting_says_what_it_is() -> None:
    for struct in (Settings, Section):
        for setting in declared(struct):
            assert len(setting.description) > 10, setting.key
            if setting.type is float:
                assert setting.unit in ("s", "MB", "CPUs"), setting.key
                assert setting.metavar == {"s": None, "MB": "MB", "CPUs": "CPUS"}[setting.unit]


def test_pairs() -> None:
    assert parse_pairs(["a=1", "b=2.5", "c=text", "d=[1, 2]", "e=x=y", "f="], "--x") == {
        "a": 1,
        "b": 2.5,
        "c": "text",
        "d": [1, 2],
        "e": "x=y",
        "f": "",
    }
    with pytest.raises(UserError, match="--x: expected KEY=VALUE, got 'nothing'"):
        parse_pairs(["nothing"], "--x")
    with pytest.raises(UserError, match=r"--x: expected A\.B=C, got 'nothing'"):
        parse_pairs(["nothing"], "--x", "A.B=C")
    for beyond in ("9" * 5000, "[" * 10_000):  # Python's limits
        with pytest.raises(ConfigError, match=r"^--x: a: "):
            parse_pairs([f"a={beyond}"], "--x")
    for endless in ("inf", "[1, nan]", "{b = -inf}"):
        with pytest.raises(ConfigError, match="no finite number"):
            parse_pairs([f"a={endless}"], "--x")


def test_bounds_are_finite() -> None:
    for setting in declared(Settings):
        if isinstance(setting.default, float):
            assert math.isfinite(setting.default)
    msgspec.json.encode(Settings())


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("[[policy]]\nname = 'x'\npolicy = 'bdd'", r"policy\[0\].policy", "did you mean 'bsd'"),
        ("[[policy]]\n[policy.options]\nfoo = 1", r"policy\[0\].options", "no option 'foo'"),
        ("[[policy]]\nbackend = 'nic'", r"policy\[0\].backend", "did you mean 'nice'"),
        ("backend = 'nic'", "backend", "did you mean 'nice'"),
        ("helpers = {net = 'folow'}", "helpers.net", "did you mean 'follow'"),
        ("profiles = '/etc/hostname'", "profiles", "no profile"),
        ("[[prior]]\npolicy = 'os'\n[[prior]]\npolicy = 'qss'", r"prior\[1\].policy", "mean 'qs'"),
        (
            "[[policy]]\n[[policy.switch]]\npolicy = 'qss'\nmetric = 'pressure'\nabove = 1",
            r"policy\[0\].switch",
            "did you mean 'qs'",
        ),
    ],
)
def test_a_word_that_means_nothing_names_the_file_that_has_it(
    tmp_path: Path, text: str, key: str, message: str
) -> None:
    path = written(tmp_path, "period = 1.0\n[[policy]]\npolicy = 'hr'")
    drop_in = written(tmp_path / "sched-ctl.d", text, "10.toml")
    with pytest.raises(SettingError, match=message) as caught:
        check_sections(load(path))
    assert re.fullmatch(f"{drop_in}: {key}", origin(path, {}, caught.value.where))


def test_options_of_nice_count_where_it_goes_inside_cgroups(tmp_path: Path) -> None:
    """Whichever backend "auto" takes; a table of its own wins, and cgroups alone take none."""
    text = """
        [backends.nice]
        best = 3
        worst = 15
        [backends.cgroup1]
        max_groups = 7
        [backends."cgroup1+nice"]
        worst = 12
    """
    read = load(written(tmp_path, text)).backends
    assert read.cgroup1_nice == GroupOptions(best=3, worst=12, max_groups=7)
    assert read.cgroup2_nice == Cgroup2Options(best=3, worst=15)
    assert read.cgroup1 == GroupOptions(max_groups=7)
    assert (read.cgroup2, read.scx) == (Cgroup2Options(), ScxOptions())


def test_options_that_exclude_each_other_name_the_file_that_has_them(tmp_path: Path) -> None:
    """Two files may set one each: only what comes of both is looked at."""
    path = written(tmp_path, "backends.nice.best = 12\nbackends.slice.long = 0.2")
    drop_in = written(tmp_path / "sched-ctl.d", "backends.nice.worst = 13", "10.toml")
    assert load(path).backends.nice == NiceOptions(best=12, worst=13)
    drop_in.write_text("backends.'cgroup1+nice'.worst = 11\nbackends.nice.worst = 13")
    wrong = rf"^{drop_in}: backends.cgroup1\+nice: `best` 12 must not be above `worst` 11"
    with pytest.raises(ConfigError, match=wrong):
        load(path)
    drop_in.write_text("")
    with pytest.raises(ConfigError, match=rf"^{path}: backends.nice: `best` 12 .* `worst` 10"):
        load(path)
    flags = {"backends": {"nice": {"worst": 13}, "slice": {"short": 0.3}}}
    with pytest.raises(ConfigError, match=r"^command line: --backend-option: `short` 0.3 must"):
        load(path, flags)


def test_the_ladder_has_a_step_for_all_options() -> None:
    assert [kind.name for kind in ladder.KINDS] == list(by_name(BackendOptions()))


@pytest.mark.parametrize(
    ("text", "flags", "place"),
    [
        ("backend = 'nice'", {"backend": "nic", "policy": [{"policy": "hr"}]}, "--backend"),
        ("[[policy]]\nbackend = 'nice'", {"backend": "nic"}, "--backend"),
        ("[[policy]]\npolicy = 'hr'", {"policy": [{"policy": "hrr"}]}, "--policy"),
        ("[[policy]]\npolicy = 'hrr'", {"backend": "nice"}, "policy[0].policy"),
        (
            "backend = 'nic'\n[[policy]]\npolicy = 'hr'\nbackend = 'nice'",
            {"policy": [{"policy": "hr"}]},
            "backend",
        ),
    ],
)
def test_a_word_that_means_nothing_names_the_flag(
    text: str, flags: dict[str, Any], place: str, tmp_path: Path
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(SettingError) as caught:
        check_sections(load(path, flags))
    source = "command line" if place.startswith("--") else path
    assert origin(path, flags, caught.value.where) == f"{source}: {place}"


def test_two_policies_for_the_same_are_the_command_lines_fault(tmp_path: Path) -> None:
    path = written(tmp_path, "period = 1.0")
    with pytest.raises(ConfigError, match=r"^command line: --policy: two are for hr") as caught:
        load(path, {"policy": [{"policy": "hr"}, {"policy": "hr"}]})
    assert caught.value.hint == "give each queries of its own: --policy QUERIES=NAME"


def test_access_is_amended_table_by_table(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[access."flink:*"]\nca = "a"\nname = "n"\n')
    folder = tmp_path / "c.d"
    folder.mkdir()
    (folder / "1.toml").write_text('[access."flink:10.0.0.1:8081"]\nuser = "me"\n')
    flags = {"access": {"flink:*": {"ca": "b"}}}
    settings = load(path, flags)
    assert list(settings.access) == ["flink:*", "flink:10.0.0.1:8081"]
    assert settings.access["flink:*"] == Access(ca="b", name="n")
    assert list(load(path).access) == ["flink:10.0.0.1:8081", "flink:*"]
    shown = tmp_path / "shown.toml"
    shown.write_text(dump(settings))
    assert load(shown) == settings
    path.write_text('[access."flink:*"]\npassword = "x"\n')
    with pytest.raises(ConfigError, match="password"):
        load(path)


def test_orders_to_begin_with_come_from_all_files_the_last_one_first(tmp_path: Path) -> None:
    path = written(tmp_path, "[[prior]]\npolicy = 'hr'")
    written(tmp_path / "sched-ctl.d", "[[prior]]\npolicy = 'os'\nqueries = ['etl*']", "10.toml")
    settings = load(path)
    check_sections(settings)
    assert [prior.policy for prior in settings.prior] == ["os", "hr"]
    wrong = written(tmp_path / "sched-ctl.d", "[[prior]]\npolicy = 'hr'\nquery = 'x'", "20.toml")
    unknown = rf"^{wrong}: prior\[0\].query: there is no such"
    with pytest.raises(ConfigError, match=unknown) as caught:
        load(path)
    assert caught.value.hint == "did you mean queries?"
    wrong.write_text("[[prior]]\npolicy = 7")
    with pytest.raises(ConfigError, match=r"prior\[0\].policy") as caught:
        load(path)
    assert "tries first" in str(caught.value.hint)


def test_no_key_of_a_section_is_left_open() -> None:
    own = Section(policy="hr", only_starved=False, objective="p99")
    settings = Settings(only_starved=True, objective="median", policy=(Section(policy="qs"), own))
    first, second = resolve(settings)
    assert (first.only_starved, second.only_starved) == (True, False)
    assert (first.objective, second.objective) == ("median", "p99")
    general = {name for name in Section.__struct_fields__ if hasattr(settings, name)}
    assert general >= {"period", "backend", "level", "shares", "only_starved"}
    assert not [name for name in general if getattr(first, name) is None]
