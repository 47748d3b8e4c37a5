"""Commands that run, steer and end the controller: load, reload, policy set, unload, restore."""

from typing import Annotated, Any

import typer

from sched_ctl.cli.flags import DEFAULT_RUN_DIR, Json, RunDir, with_settings
from sched_ctl.cli.plain import App
from sched_ctl.config.settings import Settings
from sched_ctl.errors import UserError

__all__ = ["add_to"]


class _NotPutBack(UserError):
    """A service manager does not start what ends so again: `packaging/sched-ctl.service`."""

    code = 3


policy = App(help="Change the policies of the running controller.", no_args_is_help=True)


def add_to(app: typer.Typer) -> None:
    app.command()(load)
    app.command()(reload)
    app.add_typer(policy, name="policy")
    app.command()(unload)
    app.command()(restore)


@with_settings
def load(
    settings: Settings,
    read_again: Any,
    duration: Annotated[
        float | None,
        typer.Option(
            help="Stop after so many seconds.", min=0, show_default=False, metavar="SECONDS"
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Stop after one pass, and put everything back.")
    ] = False,
) -> None:
    """Find the engines and schedule them, until Ctrl-C; then put everything back.

    Examples: sched-ctl load;  sched-ctl load --policy qs --engine flink;
    sched-ctl load --policy 'etl*=qs' --policy hr --share 'etl*=4'
    """
    import sys

    from sched_ctl.plugins import drivers
    from sched_ctl.service import session as loading
    from sched_ctl.service.sections import check_sections

    check_sections(settings)
    problems = loading.run(
        settings,
        drivers.drivers(),
        duration_s=float("inf") if duration is None else duration,
        once=once,
        read_again=read_again,
    )
    if problems:
        raise _NotPutBack(
            f"{len(problems)} changes could not be put back: {'; '.join(problems[:5])}",
            "sched-ctl restore tries again",
        )
    print("everything is as it was before", file=sys.stderr)


def reload(run_dir: RunDir = DEFAULT_RUN_DIR, json: Json = False) -> None:
    """Have the running controller read its configuration again; a bad one changes nothing.

    It reads the files that it was started with; the flags of its command line still go before
    them. SIGHUP does the same.
    """
    from sched_ctl import show
    from sched_ctl.service.socket import request

    answer = request(run_dir, "reload")
    if json:
        show.emit_json(answer)
    else:
        print(f"reloaded: {', '.join(answer['changed']) or 'nothing has changed'}")


@policy.command("set")
def policy_set(
    name: Annotated[str, typer.Argument(help="Name of the policy, see sched-ctl policies.")],
    rule: Annotated[
        str | None,
        typer.Option(help="Which rule, by its name, if there are several.", show_default=False),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="Option of the policy.", metavar="KEY=VALUE", show_default=False),
    ] = None,
    run_dir: RunDir = DEFAULT_RUN_DIR,
    json: Json = False,
) -> None:
    """Use another policy from now on, until the controller ends.

    Example: sched-ctl policy set fcfs
    """
    from sched_ctl import show
    from sched_ctl.config.files import parse_pairs
    from sched_ctl.service.socket import request

    arguments = {"policy": name, "options": parse_pairs(option or [], "--option")}
    if rule is not None:
        arguments["rule"] = rule
    answer = request(run_dir, "policy-set", arguments)
    if json:
        show.emit_json(answer)
    else:
        of = "" if answer["rule"] == answer["policy"] else f" for {answer['rule']}"
        print(f"{answer['policy']} instead of {answer['before']}{of}")


def unload(
    run_dir: RunDir = DEFAULT_RUN_DIR,
    force: Annotated[
        bool,
        typer.Option("--force", help="Kill a controller that does not answer, then put back."),
    ] = False,
    json: Json = False,
) -> None:
    """End the running controller; returns when everything is put back."""
    from sched_ctl import show
    from sched_ctl.service import session, socket

    if force and not socket.answers(run_dir):
        answer = {"not_put_back": list(session.end(run_dir))}
    else:
        answer = socket.request(run_dir, "unload", timeout_s=120.0)
    if json:
        show.emit_json(answer)
    if answer["not_put_back"]:
        raise _NotPutBack(
            "not put back: " + "; ".join(answer["not_put_back"][:5]),
            "sched-ctl restore tries again",
        )
    if not json:
        print("unloaded: everything is as it was before")


def restore(run_dir: RunDir = DEFAULT_RUN_DIR, json: Json = False) -> None:
    """Put back what a controller that was killed has left changed."""
    from sched_ctl import show
    from sched_ctl.service import session as loading

    problems = loading.put_back(run_dir)
    if json:
        show.emit_json({"not_put_back": list(problems)})
    if problems:
        raise _NotPutBack("not put back: " + "; ".join(problems[:5]))
    if not json:
        print("everything is as it was before")
