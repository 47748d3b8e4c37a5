"""The tracing program on this machine's kernel, which may have fewer symbols than guests'."""

import os
import threading
import time

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
            assert row["wait_ns"] > 0
            assert any(of == tids[0] for _, of in tracer.wakings())
        finally:
            end.set()
            thread.join()
