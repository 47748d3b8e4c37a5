"""Results and pictures of docs/papers.md, from what the sweeps found."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import results
from bench.results import Result, Row
from sched_ctl.sim import interval, plots

__all__ = ["Curve", "Data", "Figures", "write"]

Curve = dict[str, float]
Figures = Mapping[Any, Curve]
Cells = dict[str, dict[str, str]]  # row -> column -> figure, as it is shown
LABELS = {
    "rr": "RR, one tuple a turn",
    "rr-time": "RR, equal time",
    "fcfs": "FCFS",
    "srpt": "SRPT",
    "hr": "HR",
    "hnr": "HNR",
    "lsf": "LSF",
    "bsd": "BSD",
    "log": "BSD, logarithmic clusters",
    "uniform": "BSD, uniform clusters",
    "os": "OS, a thread an operator",
    "pool": "pool, longest queue first",
}


@dataclass(frozen=True)
class Data:
    """Means over the seeds. main: (load, policy). traffic: (process, load, policy).
    joins: (load, policy). ways: (implementation, clusters). sharing: (policy, rule).
    balance: (who, load). capacity: by exponent.
    """

    packets: int
    seeds: int
    traffic_seeds: int
    default: str
    example: Mapping[str, tuple[float, float]]
    main: Figures
    traffic: Figures
    joins: Figures
    ways: Figures
    sharing: Figures
    balance: Figures
    capacity: Figures


def below(data: Figures, load: float, figure: str, one: str, other: str) -> float:
    """By how much `one` is below `other`, as a part of it."""
    return 1 - data[load, one][figure] / data[load, other][figure]


def write(data: Data, each: Sequence[Data], out: Path, keep: str | None) -> None:
    """each: the same of one seed alone, for the spreads."""
    _pictures(data, out / "papers")
    for name, result in _results(data, each).items():
        results.tell(result, keep and f"{keep}-{name}")


def _curves(
    path: Path,
    title: str,
    y: str,
    data: Figures,
    figure: str,
    policies: Sequence[str],
    *,
    x: str = "utilisation",
    scale: float = 1.0,
    log: bool = True,
) -> None:
    fig, axes = plots.figure(title, x, y, log=log)
    for policy in policies:
        points = sorted(key for key in data if policy in key)
        at = [key[0] if key[1] == policy else key[1] for key in points]
        axes.plot(at, [scale * data[key][figure] for key in points], label=LABELS[policy])
    axes.legend(frameon=False, fontsize=8)
    plots.save(fig, path)


def _pictures(data: Data, folder: Path) -> None:
    main, slow = data.main, "slowdown"
    rr = ("rr", "rr-time", "srpt", "hr", "hnr")
    for number, title, y, figure, policies in (
        (5, "Mean slowdown", "slowdown", slow, rr),
        (6, "Mean response time", "mean packet gaps", "response", rr),
        (
            7,
            "Maximum slowdown",
            "slowdown",
            "slowdown_max",
            ("rr-time", "srpt", "hr", "hnr", "lsf"),
        ),
        (8, "Maximum slowdown: the trade-off", "slowdown", "slowdown_max", ("hnr", "lsf", "bsd")),
        (9, "Mean slowdown: the trade-off", "slowdown", slow, ("hnr", "lsf", "bsd")),
        (10, "l2 norm of slowdowns", "l2", "l2", ("hnr", "lsf", "bsd")),
    ):
        _curves(
            folder / f"aqsios-{number:02}.png",
            f"{title} (AQSIOS, figure {number})",
            y,
            main,
            figure,
            policies,
        )
    _curves(
        folder / "aqsios-12.png",
        "l2 norm of slowdowns, window joins (AQSIOS, figure 12)",
        "l2",
        data.joins,
        "l2",
        ("rr", "fcfs", "lsf", "hnr", "bsd"),
    )
    _curves(
        folder / "edgewise-08.png",
        "Variation of the operators' utilisation, PRED (EdgeWise, figure 8)",
        "coefficient of variation",
        data.balance,
        "variation",
        ("os", "pool"),
        x="input rate / capacity",
        log=False,
    )

    fig, axes = plots.figure(
        "Slowdown by selectivity, cheap queries (AQSIOS, figure 11)", "selectivity", "slowdown",
        log=True,
    )  # fmt: skip
    for policy in ("hr", "hnr", "bsd"):
        curve = main[0.95, policy]
        axes.plot(
            [tenth / 10 + 0.05 for tenth in range(1, 10)],
            [curve[f"class {tenth}"] for tenth in range(1, 10)],
            label=LABELS[policy],
        )
    axes.legend(frameon=False, fontsize=8)
    plots.save(fig, folder / "aqsios-11.png")

    ideal = data.ways["ideal", 0]["l2"]
    fig, axes = plots.figure(
        "l2 over that of a free BSD, at 0.95 (AQSIOS, figure 13)", "clusters", "ratio", log=True
    )
    axes.set_xscale("log", base=2)
    for way in ("log", "uniform"):
        points = sorted(key for key in data.ways if key[0] == way)
        axes.plot(
            [m for _, m in points], [data.ways[p]["l2"] / ideal for p in points], label=LABELS[way]
        )
    axes.axhline(data.ways["hnr", 0]["l2"] / ideal, color="grey", ls="--", lw=1, label="HNR")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.legend(frameon=False, fontsize=8)
    plots.save(fig, folder / "aqsios-13.png")

    steps = ("naive", "clusters", "and pruning", "and clustered processing")
    fig, axes = plots.figure(
        "l2 over that of a free BSD, at 0.95 (AQSIOS, figure 14)", "", "ratio", log=True
    )
    bars = axes.bar(steps, [data.ways[s, 0]["l2"] / ideal for s in steps], color=plots.COLOURS[0])
    axes.bar_label(bars, fmt="%.3g", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    plots.save(fig, folder / "aqsios-14.png")

    fig, axes = plots.figure(
        "Largest input rate with fixed CPU shares, PRED (EdgeWise, 5.1)",
        "a, with shares proportional to (q/r)^a",
        "part of the best possible rate",
    )
    axes.plot(list(data.capacity), [curve["rate"] for curve in data.capacity.values()])
    axes.set_ylim(0, 1.05)
    plots.save(fig, folder / "edgewise-shares.png")


@dataclass(frozen=True)
class Compared:
    """kind: "points" for parts of 1, else ratios or absolute values."""

    what: str
    paper: float
    ours: float
    kind: str


def _shown(row: Compared, seeds: Sequence[float]) -> tuple[str, ...]:
    low, high, half = min(seeds), max(seeds), interval(seeds)[1]
    if row.kind == "points":
        gap = f"{100 * (row.ours - row.paper):+.0f} points"
        ours = f"{row.ours:.0%} ± {100 * half:.0f} ({low:.0%} to {high:.0%})"
        cells = (f"{row.paper:.0%}", ours, gap)
    else:
        factor = f"{row.ours / row.paper:.2f} times"
        ours = f"{row.ours:,.4g} ± {half:,.2g} ({low:,.4g} to {high:,.4g})"
        cells = (f"{row.paper:,.4g}", ours, factor)
    return cells


def _spread(data: Data, each: Sequence[Data], figure: Callable[[Data], float], form: str) -> str:
    """The figure of the means, and half of the 95% interval over single seeds."""
    half = interval([figure(one) for one in each])[1]
    return f"{figure(data):{form}} ± {half:{form}}"


def _rows(data: Data) -> list[Compared]:
    main = data.main
    rows = []

    def add(what: str, paper: float, ours: float, kind: str = "points") -> None:
        rows.append(Compared(what, paper, ours, kind))

    for load, values in ((0.7, (0.74, 0.51, 0.18)), (0.97, (0.75, 0.53, 0.20))):
        rr, srpt, hr = values
        for policy, paper in (("rr-time", rr), ("rr", rr), ("srpt", srpt), ("hr", hr)):
            add(
                f"mean slowdown of HNR below {LABELS[policy]}, at {load}",
                paper,
                below(main, load, "slowdown", "hnr", policy),
            )
    for load, paper in ((0.7, 0.04), (0.97, 0.07)):
        add(
            f"mean response of HNR above HR, at {load}",
            paper,
            main[load, "hnr"]["response"] / main[load, "hr"]["response"] - 1,
        )
    add("maximum slowdown of LSF below HNR, at 0.97", 0.80,
        below(main, 0.97, "slowdown_max", "lsf", "hnr"))  # fmt: skip
    add("maximum slowdown of BSD below HNR, at 0.95", 0.44,
        below(main, 0.95, "slowdown_max", "bsd", "hnr"))  # fmt: skip
    add("mean slowdown of BSD below LSF, at 0.95", 0.80,
        below(main, 0.95, "slowdown", "bsd", "lsf"))  # fmt: skip
    loads = sorted({load for load, _ in main})
    add("l2 of BSD below LSF, at most", 0.57,
        max(below(main, u, "l2", "bsd", "lsf") for u in loads))  # fmt: skip
    add("l2 of BSD below HNR, at most", 0.24,
        max(below(main, u, "l2", "bsd", "hnr") for u in loads))  # fmt: skip
    joins = data.joins
    add("joins: l2 of BSD below HNR, at most", 0.14,
        max(below(joins, u, "l2", "bsd", "hnr") for u, _ in joins))  # fmt: skip
    for policy, paper in (("rr", 17.0), ("fcfs", 15.0)):
        add(
            f"joins: l2 of {LABELS[policy]} over BSD, at 0.9",
            paper,
            joins[0.9, policy]["l2"] / joins[0.9, "bsd"]["l2"],
            "ratio",
        )
    ideal = data.ways["ideal", 0]["l2"]
    for way, price in (("log", "two operations"), ("log, one operation", "one operation")):
        add(
            f"12 logarithmic clusters, {price} a candidate, over the free BSD",
            1.05,
            data.ways[way, 12]["l2"] / ideal,
            "x",
        )
    add("naive BSD over the free BSD", 65.7, data.ways["naive", 0]["l2"] / ideal, "x")
    for policy, figure, papers in (
        ("hnr", "slowdown", (261.6, 244.2, 201.1)),
        ("bsd", "l2", (66359.0, 64066.0, 60184.0)),
    ):
        of = {rule: data.sharing[policy, rule][figure] for rule in ("max", "sum", "pdt")}
        name = f"sharing: {'mean slowdown' if figure == 'slowdown' else 'l2'} of {LABELS[policy]}"
        add(f"{name}, Max", papers[0], of["max"], "x")
        add(f"{name}, Sum over Max", papers[1] / papers[0], of["sum"] / of["max"], "x")
        add(f"{name}, PDT over Max", papers[2] / papers[0], of["pdt"] / of["max"], "x")
    return rows


def _results(data: Data, each: Sequence[Data]) -> dict[str, Result]:
    def told(title: str, rows: Cells, seeds: int = data.seeds) -> Result:
        lines = [Row(name, dict(cells)) for name, cells in rows.items()]
        return Result(
            title=title,
            columns=list(lines[0].figures),
            n=seeds,
            spread="± half of the 95% interval",
            seeds=[*range(1, seeds + 1)],
            kernel=None,
            rows=lines,
            **results.here(),
        )

    of_seeds = [_rows(one) for one in each]
    names = ("paper", "ours", "difference")
    ratios = {
        row.what: dict(zip(names, _shown(row, [f[i].ours for f in of_seeds]), strict=True))
        for i, row in enumerate(_rows(data))
    }

    def let_through(a: float) -> Callable[[Data], float]:
        return lambda of: of.capacity[a]["rate"]

    through = "input rate let through, of the best possible"
    shares = {
        f"{a:g}": {through: _spread(data, each, let_through(a), ".3f")} for a in data.capacity
    }
    return {
        "ratios": told("Sharaf et al.: the paper's ratios and ours", ratios),
        "responses": told(
            f"Sharaf et al., figure 6: response times over those of {LABELS['rr-time']}",
            _responses(data, each),
        ),
        "arrivals": told(
            f"How the ratios depend on the arrivals ({data.default} is used above)",
            _arrivals(data, each[: data.traffic_seeds]),
            data.traffic_seeds,
        ),
        "clusters": told(
            "Figure 13: l2 over that of a BSD whose decisions are free, at 0.95",
            _clusters(data, each),
        ),
        "balance": told(
            "EdgeWise, figure 8: variation and latency by input rate over capacity",
            _balance(data, each),
        ),
        "shares": told("EdgeWise, section 5.1: shares proportional to (q/r)^a", shares),
    }


def _clusters(data: Data, each: Sequence[Data]) -> Cells:
    def over_ideal(way: str, m: int) -> Callable[[Data], float]:
        return lambda of: of.ways[way, m]["l2"] / of.ways["ideal", 0]["l2"]

    ways = {
        "logarithmic, decisions free": "log, free",
        "one operation": "log, one operation",
        "two operations": "log",
        "uniform, two operations": "uniform",
    }
    return {
        str(m): {name: _spread(data, each, over_ideal(way, m), ".3f") for name, way in ways.items()}
        for m in sorted(m for way, m in data.ways if way == "log")
    }


def _responses(data: Data, each: Sequence[Data]) -> Cells:
    def over_rr(load: float, policy: str, figure: str) -> Callable[[Data], float]:
        return lambda of: of.main[load, policy][figure] / of.main[load, "rr-time"][figure]

    return {
        f"{LABELS[policy]}, at {load}": {
            name: _spread(data, each, over_rr(load, policy, figure), ".3f")
            for name, figure in (("mean", "response"), ("p50", "p50"), ("p99", "p99"))
        }
        for load in (0.7, 0.97)
        for policy in ("fcfs", "srpt", "hr", "hnr", "lsf", "bsd")
    }


def _balance(data: Data, each: Sequence[Data]) -> Cells:
    def balanced(who: str, load: float, figure: str, scale: float, form: str) -> str:
        return _spread(data, each, lambda of: of.balance[who, load][figure] * scale, form)

    return {
        f"{load:g}": {
            **{f"variation, {w}": balanced(w, load, "variation", 1, ".2f") for w in ("os", "pool")},
            **{
                f"{figure}, ms, {w}": balanced(w, load, figure, 1e3, ".3g")
                for figure in ("mean", "p50", "p99")
                for w in ("os", "pool")
            },
        }
        for load in sorted({load for _, load in data.balance})
    }


def _arrivals(data: Data, each: Sequence[Data]) -> Cells:
    columns: tuple[tuple[float, str, str, str], ...] = (
        *((u, "slowdown", "hnr", p) for u in (0.7, 0.97) for p in ("rr-time", "rr", "srpt", "hr")),
        (0.97, "slowdown_max", "lsf", "hnr"),
        (0.95, "slowdown_max", "bsd", "hnr"),
        (0.95, "slowdown", "bsd", "lsf"),
        (0.95, "l2", "bsd", "lsf"),
        (0.95, "l2", "bsd", "hnr"),
    )

    def traffic(label: str, column: tuple[float, str, str, str]) -> str:
        load, figure, one, other = column

        def found(of: Data) -> float:
            curves = of.traffic
            return 1 - curves[label, load, one][figure] / curves[label, load, other][figure]

        return _spread(data, each, found, ".2f")

    return {
        label: {
            f"{load} {figure}: {one} < {other}": traffic(label, (load, figure, one, other))
            for load, figure, one, other in columns
        }
        for label in dict.fromkeys(key[0] for key in data.traffic)
    }
