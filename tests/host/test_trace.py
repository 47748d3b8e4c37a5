"""The tracing program on this machine's kernel, which may have fewer symbols than guests'."""

import os
import threading
import time
from pathlib import Path

import pytest

from sched_ctl.kernel import tracing
from support import wait_until

pytestmark = [pytest.mark.host, pytest.mark.needs("root")]


def test_waits_and_wake_ups_are_counted() -> None:
    if (why := tracing.obstacle()) is not None:
        pytest.skip(f"tracing: {why}")
    tids, end = list[int](), threading.Event()

    def run() -> None:
        tids.append(threading.get_native_id())
        while not end.is_set():
            time.sleep(0.01)

    thread = threading.Thread(target=run)
    with tracing.Tracer([os.getpid()], wakings=True) as tracer:
        thread.start()
        try:
            wait_until(lambda: bool(tids) and tids[0] in tracer.threads())
            wait_until(lambda: tracer.threads()[tids[0]]["wakeups"] > 20)
            row = tracer.threads()[tids[0]]
            assert row["slots"].sum() > 10
            # Which may be nothing: the kernel does not look at the clock between waking up a thread
            # on an idle CPU and running it.
            waited_ns = int(Path(f"/proc/self/task/{tids[0]}/schedstat").read_text().split()[1])
            assert row["wait_ns"] <= waited_ns
            assert any(of == tids[0] for _, of in tracer.wakings())
        finally:
            end.set()
            thread.join()
