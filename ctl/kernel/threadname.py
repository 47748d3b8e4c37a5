"""The names of our own threads, as `ps`, `top -H` and `perf` show them.

Python tells the kernel them from 3.14 on; until then all have the program's.
"""

from contextlib import suppress

__all__ = ["be_called"]

LONGEST = 15  # bytes, TASK_COMM_LEN without the zero


def be_called(name: str) -> None:
    """The calling thread, from now on. An engine's name is its user's: no letter of it can do
    anything to a terminal.
    """
    shown = "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in name)
    with suppress(OSError), open("/proc/thread-self/comm", "wb", buffering=0) as file:
        file.write(shown[:LONGEST].encode())
