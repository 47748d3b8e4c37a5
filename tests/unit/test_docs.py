"""README and docs: short enough to be read to the end, in step with the figures, no dead links."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import figures, results

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
WORDS = {  # README in all; the others, and all together, beside the tables made from results
    "README.md": 600,
    "docs/benchmarks.md": 1500,
    "docs/kernel-benchmarks.md": 1500,
    "docs/simulator.md": 1500,
    "docs/papers.md": 1500,
}
ALL_WORDS = 30_000
CELL_WORDS = 20
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
    assert sum(words(results.MARK.sub("", page.read_text())) for page in PAGES) < ALL_WORDS


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
    told = "\n".join(prose(page.read_text()) for page in (ROOT / "docs").glob("*.md"))
    folders = "bench|bpf|ctl|drivers|engine|packaging|policies|sim|tests|vagrant"
    files = set(re.findall(rf"`((?:{folders})/[\w./-]+)`", told)) - {"tests/vm/guest_NAME.py"}
    assert [file for file in files if not (ROOT / file).exists()] == []
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    tests = set(re.findall(r"`(test_[a-z0-9_]+)`", told))
    tests -= {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    assert [test for test in tests if f"def {test}(" not in sources] == []


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
