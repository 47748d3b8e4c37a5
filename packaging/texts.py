"""Man pages and shell completion, made from what the commands say of themselves.

    ./dev run python packaging/texts.py FOLDER

FOLDER becomes like /usr: share/man/man1/sched-ctl*.1, and a script for bash, zsh and fish, each
where that shell looks for it.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from sched_ctl import __version__
from sched_ctl.cli import make_app

COMPLETIONS = {
    "bash": "share/bash-completion/completions/sched-ctl",
    "zsh": "share/zsh/vendor-completions/_sched-ctl",
    "fish": "share/fish/vendor_completions.d/sched-ctl.fish",
}
ENDINGS = """.SH EXIT STATUS
0, or 1 for an error, 2 for a wrong command line or configuration, 3 where not all was put back.
After Ctrl\\-C 130, or 0 where that is how it ends.
.SH FILES
.TP
.I /etc/sched-ctl/sched-ctl.toml
the configuration; drop\\-ins lie in
.I /etc/sched-ctl/sched-ctl.d
.TP
.I /run/sched-ctl
the lock, the control socket, and the journal of changes
"""


def write(folder: Path) -> None:
    """All of it, below a folder."""
    root = typer.main.get_command(make_app())
    pages = dict(commands(root, "sched-ctl"))
    manual = folder / "share" / "man" / "man1"
    manual.mkdir(parents=True, exist_ok=True)
    for name, command in pages.items():
        others = [other for other in pages if other != name]
        (manual / f"{name.replace(' ', '-')}.1").write_text(page(name, command, others))
    for shell, place in COMPLETIONS.items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(completion(shell))


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The command and all below it, by their whole names."""
    yield name, command
    for below, one in getattr(command, "commands", {}).items():
        if not one.hidden:
            yield from commands(one, f"{name} {below}")


def page(name: str, command: Any, others: list[str]) -> str:
    """A command's page, in the language of man(7)."""
    title = name.replace(" ", "-")
    about = plain(command.help or "")
    first, _, rest = about.partition("\n\n")
    first = " ".join(first.split())
    lines = [
        f'.TH {title.upper().replace("-", chr(92) + "-")} 1 "" "sched-ctl {__version__}"',
        ".SH NAME",
        f"{roff(title)} \\- {roff(first.rstrip('.'))}",
        ".SH SYNOPSIS",
        f".B {roff(name)}",
        roff(" ".join(usage(command))),
    ]
    if rest:
        lines.append(".SH DESCRIPTION")
        lines += [f".PP\n{roff(' '.join(part.split()))}" for part in rest.split("\n\n")]
    panels: dict[str, list[Any]] = {}
    for option in command.params:
        if option.param_type_name == "option" and not option.hidden:
            title = getattr(option, "rich_help_panel", None) or "Options"
            panels.setdefault(title, []).append(option)
    for panel, options in panels.items():
        lines.append(f".SH {roff(panel.upper())}")
        for option in options:
            lines += [".TP", f".B {roff(flags(option))}", roff(plain(option.help or ""))]
    children = getattr(command, "commands", {})
    if children:
        lines.append(".SH COMMANDS")
        for below, one in children.items():
            brief = " ".join(plain(one.help or "").partition("\n\n")[0].split())
            lines += [".TP", f".BR {roff(f'{name}-{below}'.replace(' ', '-'))} (1)", roff(brief)]
    lines += [ENDINGS.rstrip(), ".SH SEE ALSO"]
    lines.append(",\n".join(f".BR {roff(other.replace(' ', '-'))} (1)" for other in others[:1]))
    return "\n".join(line for line in lines if line) + "\n"


def usage(command: Any) -> Iterator[str]:
    if any(param.param_type_name == "option" for param in command.params):
        yield "[OPTION]..."
    for param in command.params:
        if param.param_type_name == "argument":
            metavar = (param.metavar or param.name).upper()
            yield metavar if param.required else f"[{metavar}]"
    if getattr(command, "commands", None):
        yield "COMMAND [ARGUMENT]..."


def flags(option: Any) -> str:
    names = ", ".join((*option.opts, *option.secondary_opts))
    if option.is_flag:
        return names
    return f"{names} {option.metavar or option.name.upper()}"


def plain(text: str) -> str:
    """Without the marks of rich."""
    return re.sub(r"\[/?(?:bold|dim|italic|red|green|yellow|cyan)[^\]]*\]", "", text).strip()


def roff(text: str) -> str:
    """So that it stands in the page as it is: no escapes, no requests at the start of a line."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(
        f"\\&{line}" if line.startswith((".", "'")) else line for line in text.splitlines()
    )


def completion(shell: str) -> str:
    """What the program itself prints for the shell."""
    code = "from sched_ctl.cli import make_app; make_app()(prog_name='sched-ctl')"
    script = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "_SCHED_CTL_COMPLETE": f"source_{shell}"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    if shell == "zsh":  # it is loaded when it is first needed, and has to answer then
        script += '\n\n_sched_ctl_completion "$@"'
    return script + "\n"


if __name__ == "__main__":
    write(Path(sys.argv[1]))
