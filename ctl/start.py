"""The program's entry point.

Whoever presses Ctrl-C while half of the modules are loaded wants the program to end and not to see
where it was: until `cli.main` takes over, SIGINT ends it as it ends any program. This file loads
nothing that takes long.
"""

import gc
import signal

__all__ = ["main"]


# Objects that were made since the collector looked last. What is loaded stays, so to look at it
# again and again is a tenth of what a start costs. `Controller.run` puts the usual number back.
WHILE_LOADING = 200_000


def main() -> None:
    gc.set_threshold(WHILE_LOADING)
    # Not where it is ignored: a shell does that to what it runs in the background.
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from sched_ctl import cli

    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()
