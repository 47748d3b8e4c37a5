"""sched-ctl fleet: what many nodes recorded, by Spark."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sched_ctl.cli import fleet_sweep, outputs
from sched_ctl.cli.flags import Json, asked
from sched_ctl.cli.fleet_flags import (
    Conf,
    DropIns,
    Master,
    Node,
    Query,
    Since,
    Until,
    check,
    percent,
    spark_of,
)
from sched_ctl.cli.plain import App

if TYPE_CHECKING:
    from sched_ctl.pipeline.ingest import Done

__all__ = ["add_to"]

fleet = App(
    help="Put together what many nodes recorded, with Spark (the extra \\[fleet]).",
    no_args_is_help=True,
)

MOST_ROWS = 50  # of a table
MOST_PAGE = 20_000_000  # bytes of an earlier report
Fleet = Annotated[str, typer.Argument(help="Folder that ingest made.", metavar="FLEET")]


def add_to(app: typer.Typer) -> None:
    app.add_typer(fleet, name="fleet")


def _left(found: Sequence[object]) -> None:
    from sched_ctl import show

    if len(found) > MOST_ROWS:
        show.text(f"and {len(found) - MOST_ROWS} more: --json tells all")


def _warn(warning: str) -> None:
    from sched_ctl import show

    if warning:
        show.text(warning)


@fleet.command()
def ingest(
    source: Annotated[
        str, typer.Argument(help="Folder of recorded files, of any depth.", metavar="IN")
    ],
    out: Annotated[str, typer.Argument(help="Folder of the fleet; made if needed.", metavar="OUT")],
    follow: Annotated[
        bool, typer.Option("--follow", help="Stay, and take in files as they come, until Ctrl-C.")
    ] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="With --follow: folder of the stream's checkpoint. Default: OUT/checkpoint.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Take the closed files of many nodes into Parquet, each good record exactly once.

    IN may be on any file system that Spark knows, OUT on a local one or HDFS. Run it again for what
    is new; killed at any moment, run it again.

    Example: sched-ctl fleet ingest /srv/telemetry /srv/fleet --master 'local[2]'
    """
    from sched_ctl import show

    check()
    from sched_ctl.pipeline import ingest as ingesting

    def told(done: "Done") -> None:
        if not json:
            show.text(f"{done.files} files, {show.number(done.rows)} rows of operators")

    with spark_of("ingest", master, conf, stays=follow) as spark:
        if follow:
            done = ingesting.follow(
                spark, source, out, checkpoint or f"{out}/checkpoint", told=told
            )
        else:
            done = ingesting.ingest(spark, source, out, told=told)
    if json:
        from dataclasses import asdict

        show.emit_json(asdict(done))
        return
    show.text(
        f"new: {done.files} files with {done.lines} lines, {done.rows} rows of operators in "
        f"{done.batches} batches; known before: {done.known} files; "
        f"bad lines: {done.bad}; lines that were there already: {done.repeated}; "
        f"files set aside: {done.set_aside}"
    )
    for line in done.named[:20]:
        show.text(f"  {line}")


@fleet.command()
def profile(
    source: Fleet,
    out: Annotated[Path, typer.Argument(help="File to write.", metavar="FILE")],
    since: Since = None,
    until: Until = None,
    node: Node = None,
    query: Query = None,
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Tell what each operator is like on each kind of machine, and write it as a profile.

    `sched-ctl load --profiles FILE` starts from it, `sched-ctl simulate FILE` runs it.
    """
    from sched_ctl import show

    check()
    from sched_ctl.pipeline import profile as profiling
    from sched_ctl.pipeline import trust
    from sched_ctl.pipeline.choice import chosen
    from sched_ctl.pipeline.store import Fleet as Folder
    from sched_ctl.telemetry import profiles

    outputs.check(out)
    with asked():
        choice = chosen(since, until, node or (), query or ())
    with spark_of("profile", master, conf) as spark:
        folder = Folder(spark, source, choice)
        made = profiling.profile(folder)
        warning = "" if json else trust.warned(folder)
    profiles.write(out, made)
    if json:
        show.emit_json(made)
        return
    show.table(
        (
            "machine",
            "operator",
            ">cost us",
            ">sure",
            ">drift/day",
            ">selectivity",
            ">in/s",
            ">nodes",
        ),
        (
            (
                query.machine,
                f"{query.engine} {query.name}/{operator.name}",
                show.number(None if operator.cost is None else operator.cost * 1e6),
                percent(operator.cost_error, "+-"),
                percent(operator.drift_a_day),
                show.number(operator.selectivity),
                show.number(operator.input_rate),
                operator.nodes,
            )
            for query in made.queries
            for operator in query.operators
        ),
    )
    _warn(warning)


@fleet.command()
def bottlenecks(
    source: Fleet,
    since: Since = None,
    until: Until = None,
    node: Node = None,
    query: Query = None,
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Tell which operators hold their queries, how long, on how many nodes, and what would help."""
    from dataclasses import asdict

    from sched_ctl import show

    check()
    from sched_ctl.pipeline import bottlenecks as finding
    from sched_ctl.pipeline import trust
    from sched_ctl.pipeline.choice import chosen
    from sched_ctl.pipeline.store import Fleet as Folder

    with asked():
        choice = chosen(since, until, node or (), query or ())
    with spark_of("bottlenecks", master, conf) as spark:
        folder = Folder(spark, source, choice)
        found = finding.held(folder)
        warning = "" if json else trust.warned(folder)
    if json:
        show.emit_json([asdict(h) | {"verdict": h.verdict.word, "advice": h.advice} for h in found])
        return
    if not found:
        show.text("no operator was held")
        _warn(warning)
        return
    show.table(
        (
            *("operator", "held by", ">lost h", ">of its time there", ">spans", ">longest s"),
            *(">nodes", "do"),
        ),
        (
            (
                f"{h.engine} {h.query}/{h.operator}",
                h.verdict.word,
                f"{h.lost_s / 3600:.2f}",
                percent(h.there),
                h.spans,
                f"{h.longest_s:.0f}",
                h.nodes,
                h.advice,
            )
            for h in found[:MOST_ROWS]
        ),
    )
    _left(found)
    _warn(warning)


@fleet.command()
def changes(
    source: Fleet,
    since: Since = None,
    until: Until = None,
    node: Node = None,
    query: Query = None,
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Tell what changed: steps and drifts of cost, verdicts, latency, wait and rate, since when.

    Times are UTC. What lasts comes first, and causes before their effects.
    """
    from dataclasses import asdict

    from sched_ctl import show

    check()
    from sched_ctl.pipeline import changes as finding
    from sched_ctl.pipeline import trust
    from sched_ctl.pipeline.choice import chosen
    from sched_ctl.pipeline.store import Fleet as Folder

    with asked():
        choice = chosen(since, until, node or (), query or ())
    with spark_of("changes", master, conf) as spark:
        folder = Folder(spark, source, choice)
        found, left_out = finding.changes(folder)
        warning = "" if json else trust.warned(folder)
    if json:
        show.emit_json([asdict(change) | {"says": finding.told(change)} for change in found])
        if left_out:
            typer.echo(finding.left_out(left_out), err=True)
        return
    if not found:
        show.text("nothing changed")
        _warn(warning)
        return
    show.table(finding.COLUMNS, finding.rows(found[:MOST_ROWS]))
    _left(found)
    _warn(finding.left_out(left_out))
    _warn(warning)


@fleet.command()
def compare(
    source: Fleet,
    base: Annotated[
        str | None,
        typer.Option(help="Policy to compare with. Default: os, if it ran.", show_default=False),
    ] = None,
    since: Since = None,
    until: Until = None,
    node: Node = None,
    query: Query = None,
    drop_ins: DropIns = None,
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Compare the policies that ran, at equal load, with intervals over the nodes."""
    from dataclasses import asdict

    from sched_ctl import show

    check()
    from sched_ctl.pipeline import compare as comparing
    from sched_ctl.pipeline import prior, trust
    from sched_ctl.pipeline.choice import chosen
    from sched_ctl.pipeline.store import Fleet as Folder

    if drop_ins:
        outputs.check_in(drop_ins, prior.MEASURED)
    with asked():
        choice = chosen(since, until, node or (), query or ())
    with spark_of("compare", master, conf) as spark:
        folder = Folder(spark, source, choice)
        found = comparing.compare(folder, base)
        suited = prior.measured(comparing.by_query(folder)) if drop_ins else []
        warning = "" if json else trust.warned(folder)
    said = prior.write(drop_ins, prior.MEASURED, suited) if drop_ins else ""
    if json:
        show.emit_json([asdict(c) | {"tells": c.tells} for c in found])
        return
    show.table(
        ("policy", "against", "figure", ">value", ">95% interval", ">nodes", "what it says"),
        (
            (
                c.policy,
                c.base,
                c.figure,
                f"{c.value:.3g}",
                "-" if c.low != c.low else f"{c.low:.3g} to {c.high:.3g}",
                c.nodes,
                "differs" if c.tells else "the data do not tell",
            )
            for c in found
        ),
    )
    show.text("latency, age, queue, throughput: ratios; fairness (Jain's index): difference")
    _warn(warning)
    if said:
        show.text(said)


@fleet.command()
def report(
    source: Fleet,
    out: Annotated[Path, typer.Argument(help="HTML file to write.", metavar="FILE")],
    since: Since = None,
    until: Until = None,
    node: Node = None,
    query: Query = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Put the fleet on one HTML page that needs nothing else.

    Where FILE is an earlier report, the new one tells what is new since then.
    """
    from sched_ctl import show

    check()
    from sched_ctl.pipeline import report as reporting
    from sched_ctl.pipeline.choice import chosen
    from sched_ctl.pipeline.store import Fleet as Folder

    outputs.check(out)
    last = None
    with suppress(OSError, UnicodeDecodeError):
        if out.stat().st_size < MOST_PAGE:
            last = reporting.facts_in(out.read_text(encoding="utf-8"))
    with asked():
        choice = chosen(since, until, node or (), query or ())
    with spark_of("report", master, conf) as spark:
        text = reporting.report(Folder(spark, source, choice), last)
    outputs.write(out, text)
    show.text(f"{out}: {len(text.encode()) / 1e3:.0f} kB")


@fleet.command()
def compact(source: Fleet, master: Master = None, conf: Conf = None, json: Json = False) -> None:
    """Put the many small files of frequent ingests together; the rows stay what they are.

    The files that were replaced are removed a day later, by the next ingest or compact.
    """
    from sched_ctl import show

    check()
    from sched_ctl.pipeline import compact as compacting
    from sched_ctl.pipeline.store import Fleet as Folder

    with spark_of("compact", master, conf) as spark:
        batches, rows = compacting.compact(Folder(spark, source))
    if json:
        show.emit_json({"batches": batches, "rows": rows})
        return
    show.text(f"{batches} batches are one now, of {rows} rows" if batches else "nothing to do")


@fleet.command()
def expire(
    source: Fleet,
    rows: Annotated[
        str | None,
        typer.Option(
            help="How long rows of records stay: 30d, 8w. Roll-ups by the hour stay.",
            metavar="TIME",
            show_default=False,
        ),
    ] = None,
    hours: Annotated[
        str | None,
        typer.Option(
            help="How long roll-ups stay, and rows at most.", metavar="TIME", show_default=False
        ),
    ] = None,
    rule: Annotated[
        bool, typer.Option("--rule", help="Let each ingest do so from now on.")
    ] = False,
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Let old data go. They count no more at once; their files are removed a day later.

    Without --rows and --hours: say what the rule is; with --rule alone: there is none any more.

    Example: sched-ctl fleet expire /srv/fleet --rows 30d --hours 400d --rule
    """
    from sched_ctl import show

    check()
    from sched_ctl.pipeline import expire as expiring
    from sched_ctl.pipeline.choice import days_of
    from sched_ctl.pipeline.store import Fleet as Folder
    from sched_ctl.pipeline.store import Keep

    with asked():
        keep = Keep(days_of(rows) if rows else 0, days_of(hours) if hours else 0)
    with spark_of("expire", master, conf) as spark:
        folder = Folder(spark, source)
        folder.require()
        moved = expiring.expire(folder, keep, rule=rule)
        folder.clean()
        kept = folder.keep
    if json:
        show.emit_json({"since": moved, "rule": {"rows": kept.rows, "hours": kept.hours}})
        return
    for what, kind in (("rows", "operator"), ("roll-ups", "hour")):
        if kind in moved:
            show.text(f"{what} count from {moved[kind]} on")
    if not moved:
        show.text("nothing is old enough" if keep != Keep() else "nothing was asked to go")
    told = [f"{what} {n} days" for what, n in (("rows", kept.rows), ("roll-ups", kept.hours)) if n]
    show.text(f"the rule: {', '.join(told) or 'all stays'}")


@fleet.command()
def generate(
    out: Annotated[Path, typer.Argument(help="Folder for the files.", metavar="OUT")],
    nodes: Annotated[int, typer.Option(min=1, max=100_000)] = 4,
    hours: Annotated[float, typer.Option(min=0.01, max=10_000)] = 1.0,
    queries: Annotated[int, typer.Option(min=1, max=2000)] = 4,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    bad_lines: Annotated[int, typer.Option(help="In each file.", min=0)] = 0,
    skew: Annotated[
        int, typer.Option(help="The first node has so many times the queries.", min=1, max=1000)
    ] = 1,
) -> None:
    """Write telemetry of nodes that do not exist, to try the other commands.

    Queries are chains of five operators; policies os and hr take turns, and one operator is a
    bottleneck for a while on a quarter of the nodes.
    """
    from sched_ctl import show
    from sched_ctl.pipeline.generate import Plan
    from sched_ctl.pipeline.generate import generate as made

    seconds = round(hours * 3600)
    plan = Plan(
        nodes=nodes,
        seconds=seconds,
        queries=queries,
        seed=seed,
        bad_lines=bad_lines,
        skew=skew,
        fault=(seconds // 4, seconds // 2),
        fault_nodes=max(1, nodes // 4),
        drift_a_day=0.5,
    )
    truth = made(out, plan)
    show.text(
        f"{len(truth.files)} files, {truth.lines} lines, {truth.operator_rows} rows of operators"
    )


fleet.command()(fleet_sweep.sweep)
fleet.command()(fleet_sweep.rollout)
