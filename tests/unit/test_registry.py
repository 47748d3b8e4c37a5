"""Entry points, also those of other distributions, also broken ones."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sched_ctl import drivers as ours
from sched_ctl import policies
from sched_ctl.errors import UserError
from sched_ctl.model.policy import Policy
from sched_ctl.plugins import drivers, entries, registry


@pytest.fixture
def strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution with one good policy, several broken ones, and one that wants to be our hr."""
    (tmp_path / "stranger.py").write_text(
        "from sched_ctl.model.policy import Policy, form\n"
        "def good(weight: int = 1) -> Policy:\n"
        "    return Policy('good', lambda f: form(len(f), static=weight), frozenset(), 'g')\n"
        "number = 3\n"
    )
    (tmp_path / "broken.py").write_text("import a_module_that_is_not_there\n")
    (tmp_path / "exits.py").write_text("raise RuntimeError('no license')\n")
    info = tmp_path / "stranger-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[sched_ctl.policies]\n"
        "good = stranger:good [extra]\n"
        "gone = stranger:gone\n"
        "number = stranger:number\n"
        "broken = broken:policy\n"
        "license = exits:policy\n"
        "hr = stranger:good\n"
        "[sched_ctl.drivers]\n"
        "heron = stranger:good\n"
    )
    (tmp_path / "torn-1.0.dist-info" / "entry_points.txt").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    entries.all_entries.cache_clear()
    yield
    entries.all_entries.cache_clear()
    for name in ("stranger", "broken", "exits"):
        sys.modules.pop(name, None)


def test_ours_are_found() -> None:
    """Each file of the folder is a policy, and nothing lists them."""
    assert registry.policy("fcfs").name == "fcfs"
    assert not registry.problems() and not drivers.problems()
    [folder] = map(Path, policies.__path__)
    files = {path.stem.replace("_", "-") for path in folder.glob("[a-z]*.py")}
    assert files == registry.policies().keys() and len(files) > 19
    assert {"flink", "kernel", "lab", "liebre", "spark", "storm"} <= drivers.drivers().keys()


def test_a_new_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy, a driver of one file and one in a folder; what sets neither is no plug-in."""
    (tmp_path / "a_new_one.py").write_text(
        "from sched_ctl.model.policy import Policy, form\n"
        "def policy(weight: int = 1) -> Policy:\n"
        "    return Policy('a-new-one', lambda f: form(len(f)), frozenset(), 'g')\n"
    )
    kind = "from sched_ctl.drivers import DriverKind\nkind = DriverKind('x', list, print)\n"
    (tmp_path / "heron.py").write_text(kind)
    (tmp_path / "samza").mkdir()
    (tmp_path / "samza" / "driver.py").write_text(kind)
    (tmp_path / "helper.py").write_text("def policy_of(): raise SystemExit\nKIND = kindred = 1\n")
    (tmp_path / "garbage.py").write_bytes(b"\xff\xfe no text")  # takes nothing else down
    for package in (policies, ours):
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    entries.all_entries.cache_clear()
    try:
        assert registry.policy("a-new-one", {"weight": 2}).name == "a-new-one"
        assert {"heron", "samza"} <= drivers.drivers().keys()
        named = {*entries.entries("sched_ctl.policies"), *entries.entries("sched_ctl.drivers")}
        assert not {"helper", "threads", "threadnames", "sources"} & named
    finally:
        entries.all_entries.cache_clear()
        for name in (
            "policies.a_new_one",
            "drivers.heron",
            "drivers.samza.driver",
            "drivers.samza",
        ):
            sys.modules.pop(f"sched_ctl.{name}", None)


def test_the_first_policy_of_contributing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both files of that page, as they stand there."""
    text = Path(__file__).parents[2].joinpath("CONTRIBUTING.md").read_text()
    policy, test = re.findall(r"^```python\n(.*?)^```$", text, re.S | re.M)
    (tmp_path / "oldest_first.py").write_text(policy)
    monkeypatch.setattr(policies, "__path__", [*policies.__path__, str(tmp_path)])
    entries.all_entries.cache_clear()
    try:
        names: dict[str, Any] = {}
        exec(compile(test, "CONTRIBUTING.md", "exec"), names)
        names["test_who_waits_longest_is_first"]()
    finally:
        entries.all_entries.cache_clear()
        sys.modules.pop("sched_ctl.policies.oldest_first", None)


@pytest.mark.usefixtures("strangers")
def test_a_broken_plugin_takes_nothing_else_down() -> None:
    found = registry.policies()
    assert {"good", "hr", "qs"} <= found.keys()
    assert not {"gone", "number", "broken", "license"} & found.keys()
    assert "heron" not in drivers.drivers()
    problems = {**registry.problems(), **drivers.problems()}
    assert "a_module_that_is_not_there" in problems["policies: broken"]
    assert "stranger" in problems["policies: broken"]
    assert "no license" in problems["policies: license"]
    assert "drivers: heron" in problems


@pytest.mark.usefixtures("strangers")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("broken", "a_module_that_is_not_there"),
        ("license", "RuntimeError: no license"),
        ("gone", "gone"),
        ("number", "int"),
    ],
)
def test_who_asks_for_a_broken_plugin_is_told_whose_it_is(name: str, text: str) -> None:
    with pytest.raises(UserError, match=text) as error:
        registry.policy(name)
    assert "stranger" in error.value.message


@pytest.mark.usefixtures("strangers")
def test_nobody_replaces_a_policy_of_ours() -> None:
    assert registry.policy("hr").name == "hr"
    assert any("ignored" in text for text in registry.problems().values())


@pytest.mark.usefixtures("strangers")
def test_options_are_converted_from_text() -> None:
    made = registry.policy("good", {"weight": "7"})
    assert made.options == {"weight": 7}
    with pytest.raises(UserError, match=r"good, option weight: .*'x'"):
        registry.policy("good", {"weight": "x"})
    with pytest.raises(UserError, match=r"Expected `int`, got `float`"):
        registry.policy("good", {"weight": 1.5})


def test_tables_may_come_as_json_text() -> None:
    made = registry.policy("constant", {"priorities": '{"etl/*": 5}'})
    assert made.options == {"priorities": {"etl/*": 5.0}}
    for bad in ('{"etl": "x"}', '{"etl": 5', "[1]", "5"):
        with pytest.raises(UserError, match="constant, option priorities"):
            registry.policy("constant", {"priorities": bad})


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(UserError, match="no policy 'min-latncy': did you mean 'min-latency'") as e:
        registry.policy("min-latncy")
    assert e.value.hint


def test_an_unknown_option_gets_a_suggestion() -> None:
    with pytest.raises(UserError, match="no option 'sed': did you mean 'seed'"):
        registry.policy("random", {"sed": 3})
    with pytest.raises(UserError, match="no option 'x'") as error:
        registry.policy("fcfs", {"x": 3})
    assert error.value.hint == "it takes no options"


def test_options_of() -> None:
    assert list(registry.options_of(registry.policies()["random"])) == ["seed"]
    assert isinstance(registry.policies()["fcfs"], Policy)
    assert not registry.options_of(registry.policies()["fcfs"])


def test_of_equally_near_names_the_first_letter_decides() -> None:
    with pytest.raises(UserError, match="did you mean 'hr'"):
        registry.policy("hrr")
    with pytest.raises(UserError, match="did you mean 'rr'"):
        registry.policy("rrr")
