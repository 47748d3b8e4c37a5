"""README and docs: short enough to be read to the end, in step with the figures, no dead links."""

import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from bench import figures, results
from sched_ctl.cli import make_app

ROOT = Path(__file__).parents[2]
PAGES = (
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(ROOT.glob("[!.]*/README.md")),
)
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
WORDS = {  # README in all; the others, and all together, beside the tables made from results
    "README.md": 600,
    "docs/benchmarks.md": 1500,
    "docs/kernel-benchmarks.md": 1500,
    "docs/simulator.md": 1500,
    "docs/papers.md": 1500,
}
ALL_WORDS = 30_000  # as `wc -w` counts them
CELL_WORDS = 20
INVENTED = {"policies/oldest_first.py", "tests/unit/test_oldest_first.py"} | {
    "tests/vm/guest_NAME.py"
}
SENTENCE_WORDS = 40


def prose(text: str) -> str:
    """Without code blocks, comments and generated tables."""
    text = results.MARK.sub("", text)
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def words(text: str) -> int:
    return sum(any(letter.isalnum() for letter in word) for word in text.split())


def plain(text: str) -> str:
    """As it is read aloud: code is one word, a link is its text."""
    text = re.sub(r"`[^`]+`", "code", text)
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)


def cells(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.startswith("|"):
            yield from (plain(cell).strip() for cell in re.split(r"(?<!\\)\|", line))


def sentences(text: str) -> Iterator[str]:
    """Of paragraphs and of items of lists; tables and indented code are left out."""
    blocks: list[list[str]] = [[]]
    for line in prose(text).splitlines():
        if not line.strip() or line.startswith(("|", "    ", "#")):
            blocks.append([])
            continue
        if re.match(r" *([*-]|\d+\.) ", line):
            blocks.append([])
        blocks[-1].append(line.strip())
    for block in blocks:
        yield from re.split(r"(?<=[.?!])[*)\"]* ", plain(" ".join(block)))


def anchors(page: Path) -> set[str]:
    """As GitHub makes them from headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page.read_text()), re.MULTILINE):
        text = re.sub(r"[^\w\- ]", "", plain_heading(heading).lower())
        found.add(text.replace(" ", "-"))
    return found


def plain_heading(heading: str) -> str:
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.replace("`", ""))


@pytest.mark.parametrize("name", WORDS)
def test_a_page_has_no_more_words_than_its_limit(name: str) -> None:
    text = (ROOT / name).read_text()
    told = text if name == "README.md" else results.MARK.sub("", text)
    assert words(told) <= WORDS[name]


def test_all_pages_together_can_be_read() -> None:
    told = {page: len(results.MARK.sub("", page.read_text()).split()) for page in PAGES}
    assert sum(told.values()) <= ALL_WORDS, sorted(told.items(), key=lambda of: -of[1])


@pytest.mark.parametrize("name", NAMES)
def test_no_cell_of_a_table_is_a_paragraph(name: str) -> None:
    long = [cell for cell in cells((ROOT / name).read_text()) if words(cell) > CELL_WORDS]
    assert long == []


@pytest.mark.parametrize("name", NAMES)
def test_no_sentence_is_out_of_breath(name: str) -> None:
    text = (ROOT / name).read_text()
    assert [s for s in sentences(text) if len(s.split()) > SENTENCE_WORDS] == []


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        to = (page.parent / path).resolve() if path else page
        if not to.exists() or (anchor and to.suffix == ".md" and anchor not in anchors(to)):
            dead.append(target)
    assert dead == []


def test_pages_show_the_figures_that_are_kept() -> None:
    stale = [
        page.name
        for page in results.PAGES
        if results.refreshed(page.read_text()) != page.read_text()
    ]
    assert stale == [], "./dev figures"


def test_the_drawing_is_of_the_figures_that_are_kept() -> None:
    drawn = figures.drawing(results.load(figures.DRAWN))
    assert figures.DRAWING.read_text() == drawn, "./dev figures"


def test_results_that_are_named_are_there() -> None:
    names = {path.stem for path in results.FOLDER.glob("*.json")}
    kinds = "|".join(sorted({name.partition("-")[0] for name in names if "-" in name}))
    told = set()
    for page in (ROOT / "docs").glob("*.md"):
        told |= set(re.findall(rf"`((?:{kinds})-[a-z0-9.-]+)`", prose(page.read_text())))
    assert {name for name in told if name not in names} - {"light-first"} == set()


def test_files_and_tests_that_are_named_are_there() -> None:
    told = "\n".join(prose(page.read_text()) for page in PAGES)
    folders = "bench|bpf|ctl|drivers|engine|packaging|pipeline|policies|sim|tests|vagrant"
    files = set(re.findall(rf"`((?:{folders})/[\w./-]+)`", told)) - INVENTED
    assert [file for file in files if not (ROOT / file).exists()] == []
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    tests = set(re.findall(r"`(test_[a-z0-9_]+)`", told))
    tests -= {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    assert [test for test in tests if f"def {test}(" not in sources] == []


def code(text: str) -> Iterator[str]:
    """Spans, on one line or two, and lines of blocks, whether indented or fenced."""
    fenced = r"^```.*?$(.*?)^```$"
    for block in re.findall(fenced, text, re.DOTALL | re.MULTILINE):
        yield from block.splitlines()
    text = re.sub(fenced, "", text, flags=re.DOTALL | re.MULTILINE)
    yield from re.findall(r"^    (.+)$", text, re.MULTILINE)
    for span in re.findall(r"`([^`]+)`", re.sub(r"^    .+$", "", text, flags=re.MULTILINE)):
        yield " ".join(span.split())


def options_of(command: Any) -> set[str]:
    names = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    return names | {"-h", "--help"}


def commands(within: Any) -> Iterator[Any]:
    yield within
    for command in getattr(within, "commands", {}).values():
        yield from commands(command)


def unknown(line: str) -> str:
    """What of a command line there is no longer; words in capitals stand for the reader's own."""
    command = of = get_command(make_app())
    for word in shlex.split(line, comments=True)[1:]:
        if word in ("|", "&&", ";", ">", "..."):
            break
        if word.startswith("-") and word != "-":
            if of.context_settings.get("ignore_unknown_options"):
                return ""  # they are another program's
            if word.partition("=")[0] not in options_of(of):
                return word
        elif hasattr(of, "commands") and not word.isupper():
            if word not in of.commands:
                return word
            of = of.commands[word]
    return "" if of is not command or "--" in line or line == "sched-ctl" else line


@pytest.mark.parametrize("name", NAMES)
def test_commands_that_are_shown_can_be_given(name: str) -> None:
    wrong = []
    for line in code((ROOT / name).read_text()):
        begun = re.match(r"(?:\$ |sudo |\./dev run |[A-Z_]+=\S+ )*(sched-ctl( .*)?$)", line)
        if begun is not None and (word := unknown(begun[1])):
            wrong.append(f"{word} in: {line}")
        for module in re.findall(r"python3? -m ((?:bench|pipeline|stress)[.\w]*)", line):
            path = module.replace(".", "/")
            files = (f"{at}/{path}{end}" for at in ("", "tests") for end in (".py", "/__main__.py"))
            if not any((ROOT / file.lstrip("/")).exists() for file in files):
                wrong.append(line)
    assert wrong == []


@pytest.mark.parametrize("name", NAMES)
def test_options_that_are_named_are_there(name: str) -> None:
    """Of any command of ours, or of a program in this repository."""
    ours = {
        option for command in commands(get_command(make_app())) for option in options_of(command)
    }
    told = set(re.findall(r"`(--[a-z][a-z-]+)", (ROOT / name).read_text()))
    told -= ours | {"--junitxml"}  # of pytest
    assert {option for option in told if option not in programs()} == set()


@functools.cache
def programs() -> str:
    files = [
        path
        for at in ("bench", "packaging", "tests", "vagrant")
        for path in (ROOT / at).rglob("*.py")
    ]
    return "\n".join(
        path.read_text()
        for path in [ROOT / "dev", ROOT / "vagrant" / "vm", *files]
        if path != Path(__file__)
    )


@pytest.mark.parametrize("name", sorted(path.stem for path in results.FOLDER.glob("*.json")))
def test_a_result_says_how_it_was_measured(name: str) -> None:
    result = results.load(name)
    assert result.rows and set(result.rows[0].figures) <= set(result.columns)
    assert {column for row in result.rows for column in row.figures} <= set(result.columns)
    assert any((result.command, result.build, result.kernel))


def test_no_page_tells_of_what_was() -> None:
    """The page says what is; what was is in the history."""
    diary = re.compile(r"\b(an|the) (earlier|former) build\b|\bthe build before\b", re.IGNORECASE)
    assert [name for name in NAMES if diary.search(prose((ROOT / name).read_text()))] == []


def test_each_benchmark_has_a_line_and_finds_its_modules_by_itself() -> None:
    bench = ROOT / "bench"
    programs = set()
    for file in bench.rglob("*.py"):
        text = file.read_text()
        assert "sys.path" not in text, file
        if "\nif __name__ ==" in text and not file.stem.endswith("_inside"):
            parts = file.relative_to(bench).with_suffix("").parts
            programs.add(".".join(part for part in parts if part != "__main__"))
    named = re.findall(r"^\| `([\w.]+)` \|", (bench / "README.md").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(programs - {"figures"})
