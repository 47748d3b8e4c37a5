"""The fleet's page in a browser, as wide as a phone and as a desk: a full one, with long names."""

import json
import math
import random
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sched_ctl.cli import fleet
from sched_ctl.metrics.verdicts import Verdict
from sched_ctl.pipeline import changes, compare, page, report, trust
from sched_ctl.pipeline.bottlenecks import Held

LEAST_PX = 9.0  # letters that can be read
# Rectangles of all words: outside their drawing, over one another, too small; and the whole page.
LOOK = """
<script>
addEventListener("load", () => {
  const found = {wide: document.documentElement.scrollWidth - innerWidth, words: []};
  for (const svg of document.querySelectorAll("svg")) {
    const frame = svg.getBoundingClientRect(), scale = frame.width / svg.viewBox.baseVal.width;
    const all = [...svg.querySelectorAll("text")].map(t => [t.textContent,
      t.getBoundingClientRect(), parseFloat(getComputedStyle(t).fontSize) * scale]);
    all.forEach(([words, at, size], i) => {
      if (size < LEAST) found.words.push(`${words}: ${size} px`);
      if (at.left < frame.left - 1 || at.right > frame.right + 1 || at.bottom > frame.bottom + 2)
        found.words.push(`${words}: outside`);
      for (const [other, to] of all.slice(i + 1))
        if (Math.min(at.right, to.right) - Math.max(at.left, to.left) > 1 &&
            Math.min(at.bottom, to.bottom) - Math.max(at.top, to.top) > at.height / 3)
          found.words.push(`${words} over ${other}`);
    });
  }
  document.body.innerHTML = "";
  document.title = JSON.stringify(found);
});
</script>""".replace("LEAST", str(LEAST_PX))


def held_one(operator: str, nodes: list[str]) -> Held:
    at = 60_000, 7_000_000, tuple(nodes[:4])
    verdict = Verdict.SINGLE_THREAD_BOUND
    return Held("flink", "nexmark-q5", operator, verdict, 17, 9e3, 1.2e6, 3e3, 4, 0.3, 0.62, *at)


def full_page() -> str:
    """As many nodes, operators and policies as the report shows at most."""
    chance = random.Random(1)
    nodes = [f"gateway-{n:04}.plant-7.example" for n in range(report.WORST)]
    operators = [f"query-{n // 5}/operator-{n % 5}" for n in range(report.OPERATORS)]
    policies = ("os", "hr", "balanced", "light-first", "min-latency", "multi-class")
    letters = [0.5 ** (k + 2) for k in reversed(range(report.LETTERS))]
    wanted = [*letters, 0.5, *(1 - q for q in reversed(letters))]
    compared = [
        compare.Compared(policy, "os", name, value, value * 0.8, value * 1.3, 17, 90_000)
        for policy in policies[1:]
        for name, value in (("latency", 0.2), ("throughput", 1.01), ("fairness", -0.000123))
    ]
    held = [held_one(o, nodes) for o in operators[:30]]
    figures = [
        page.figure("bars", page.bars([(n, chance.random(), "43.1%") for n in nodes], "w")),
        page.figure(
            "lines",
            page.lines(
                [
                    (n, [(60.0 * i, chance.random()) for i in range(report.POINTS)])
                    for n in nodes[:6]
                ],
                "% of the time",
                "w",
            ),
        ),
        page.figure(
            "heat",
            page.heat(nodes, operators, [[chance.random() for _ in operators] for _ in nodes], "w"),
        ),
        page.figure(
            "letters",
            page.letter_values(
                [(p, [20 * 3 ** math.log(q / (1 - q)) for q in wanted]) for p in policies],
                "ms",
                "w",
            ),
        ),
        page.figure(
            "forest",
            page.forest(
                [(f"{c.policy}: {c.figure}", abs(c.value), 0.1, 1.9) for c in compared], "w"
            ),
        ),
    ]
    return whole(figures, held, compared, nodes, operators[0])


def whole(figures: Any, held: Any, compared: Any, nodes: list[str], operator: str) -> str:
    total = {"nodes": 200, "queries": 20, "rows": 28_800_000, "begin": 0, "end": 7_200_000}
    change = changes.Change(
        "cost", "flink", "nexmark-q5", operator, False, 3_600_000, None, 300_000, 2.0, 1.9,
        2.1, 1e-12, tuple(nodes[:3]), 3,
    )  # fmt: skip
    doubts = [trust.Doubt(n, "its counters", 17, "cpu 1000000000000 in 5000 ms") for n in nodes[:9]]
    told = report.Told(total, (0, 7_200_000), figures, held, [change], 1, compared, "", doubts)
    last = report.Facts(3_600_000, [], {"flink q5/gone io-bound": 1.0})
    rows = [
        (
            n,
            "x86_64, 2 CPUs",
            "1 Jan 00:00",
            "1 Jan 02:00",
            "1%",
            3,
            "sched-ctl fleet report /srv/fleet x.html --node x",
        )
        for n in nodes
    ]
    return report.whole(told, rows, (288_000, 17), last)


def test_the_next_page_tells_what_is_new() -> None:
    text = full_page()
    facts = report.facts_in(text)
    assert facts is not None and facts.when == 7_200_000
    assert len(facts.held) == 30
    assert "held no more: flink q5/gone io-bound" in text
    assert "new: nexmark-q5/query-0/operator-0 costs 2.0 times as much" in unescape(text)
    assert report._difference(facts, facts).endswith("<p>Nothing is new.</p>")
    assert report._difference(facts, None) == ""
    for text in ("", "<p>hello</p>", '<script type="application/json" id="facts">[1]</script>'):
        assert report.facts_in(text) is None


def test_what_is_held_is_held_still_where_the_page_has_no_room_for_it() -> None:
    many = [held_one(f"o{n}", ["gw"]) for n in range(40)]

    def facts(held: list[Held]) -> report.Facts:
        return report.facts_of(cast(Any, SimpleNamespace(span=(0, 1), changed=[], held=held)))

    text = report._difference(facts([*many[10:], *many[:10]]), facts(many))
    assert text.endswith("<p>Nothing is new.</p>")
    assert "held no more: flink nexmark-q5/o39" in report._difference(facts(many[:39]), facts(many))


def test_a_change_is_known_still_where_the_page_has_no_room_for_it() -> None:
    many = [step(0, operator=f"o{n}") for n in range(40)]

    def told(changed: list[changes.Change], left: int = 0) -> Any:
        return cast(Any, SimpleNamespace(span=(0, 1), changed=changed, left_out=left, held=[]))

    before, after = (report.facts_of(told(found)) for found in (many, many[::-1]))
    assert report._difference(after, before).endswith("<p>Nothing is new.</p>")
    assert "and 35 more" in report._difference(after, report.Facts(0, [], {}))
    assert "10 more: sched-ctl fleet changes" in report._changed(told(many))
    assert "more" not in report._changed(told(many[:30]))
    assert "Left out" not in report._changed(told(many))
    assert "<p>Left out, as smaller: 1,234; " in report._changed(told(many[:9], 1234))


def step(begin_ms: int, **other: Any) -> changes.Change:
    made = changes.Change(
        "cost", "flink", "q", "o3", False, begin_ms, None, 300_000, 2.0, 1.9, 2.1, 1e-12,
        ("gw-0",), 1,
    )  # fmt: skip
    return replace(made, **other)


def told_anew(before: changes.Change, now: changes.Change) -> bool:
    one, other = (report.Facts(at, [report._known(c)], {}) for at, c in enumerate((before, now)))
    return "new: " in report._difference(other, one)


def test_a_change_is_new_once_however_its_time_and_nodes_are_told() -> None:
    minute = 60_000
    first = step(660 * minute)
    for same in (
        first,
        replace(first, begin_ms=667 * minute),  # slots begin with the window, which moves
        replace(first, begin_ms=680 * minute, slot_ms=10 * minute),
        replace(first, nodes=("gw-0", "gw-1"), count=2, size=1.96),
        replace(first, operator="o2", others=("q/o3",)),
    ):
        assert not told_anew(first, same), same
    for other in (
        replace(first, begin_ms=690 * minute),
        replace(first, size=0.5),
        replace(first, figure="wait", size=0.3),
        replace(first, operator="o4"),
        replace(first, engine="storm"),
        replace(first, until_ms=900 * minute),  # it is over
    ):
        assert told_anew(first, other), other
    # A drift lasts as long as the data do.
    drift = step(0, drifts=True, until_ms=6000 * minute)
    later = replace(drift, begin_ms=1440 * minute, until_ms=7440 * minute, size=2.5)
    assert not told_anew(drift, later)
    assert told_anew(drift, replace(later, size=0.5))
    less = step(0, figure="wait", size=-0.2)
    assert not told_anew(less, replace(less, size=-0.3))
    assert told_anew(less, replace(less, size=0.2))


def test_advice_has_nodes_times_and_links() -> None:
    text = full_page()
    advice = text[: text.index("<h2>")]
    assert 1 <= advice.count("<li>") <= 3
    assert 'on <a href="#node-gateway-0000.plant-7.example">gateway-0000' in advice
    assert "since 1 Jan 01:00" in advice
    assert "between" in advice and "62% of all its time there" in advice


def test_the_first_node_of_a_range_is_a_link() -> None:
    text = report._linked("q costs more on gw-0000..0002 since 3:00", ["gw-0000", "gw-0001"])
    assert text == 'q costs more on <a href="#node-gw-0000">gw-0000</a>..0002 since 3:00'
    assert "<a" not in report._linked("on gw-0000.plant, xgw-0000", ["gw-0000"])


@pytest.mark.needs("chromium")
@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_can_be_read(width: int, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(full_page().replace("</html>", f"{LOOK}</html>"))
    browser = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    done = subprocess.run(
        [
            *(str(browser), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *(f"--user-data-dir={tmp_path}", f"--window-size={width},2000", path.as_uri()),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert title and title[1] != "Fleet", done.stderr[-2000:]
    found = json.loads(unescape(title[1]))
    assert found["wide"] <= 0, found
    assert found["words"] == []


def test_a_table_that_is_cut_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    fleet._left(range(50))
    assert capsys.readouterr().out == ""
    fleet._left(range(53))
    assert capsys.readouterr().out == "and 3 more: --json tells all\n"
