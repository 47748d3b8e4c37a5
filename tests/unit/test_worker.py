"""Where a driver's calls are made: what comes back, to whom, and what ends nobody's loop."""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sched_ctl.engines import worker as worker_module
from sched_ctl.engines.worker import Here, Worker
from support import wait_until

LONG_S = 60.0  # until which nobody here waits


@pytest.fixture
def worker() -> Iterator[Worker[Any]]:
    made: Worker[Any] = Worker("of a test")
    yield made
    made.stop()


@pytest.fixture(params=("worker", "here"))
def either(request: pytest.FixtureRequest, worker: Worker[Any]) -> Worker[Any] | Here:
    return worker if request.param == "worker" else Here()


def fails() -> None:
    raise ValueError("why")


@pytest.mark.parametrize("brief_s", [0.0, LONG_S])
def test_what_a_call_returns_or_raises_arrives(either: Worker[Any] | Here, brief_s: float) -> None:
    async def main() -> None:
        assert await either.call(lambda: 7, brief_s) == 7
        with pytest.raises(ValueError, match="why"):
            await either.call(fails, brief_s)
        with pytest.raises(RuntimeError, match="SystemExit: 3"):  # of a plug-in, which is no end
            await either.call(lambda: sys.exit(3), brief_s)
        assert await either.call(lambda: 8, brief_s) == 8

    asyncio.run(main())


def test_a_quick_answer_needs_no_turn_of_the_loop(worker: Worker[Any]) -> None:
    async def main() -> None:
        assert worker.call(lambda: 7, LONG_S).done()

    asyncio.run(main())


def test_a_slow_answer_comes_through_the_loop(worker: Worker[Any]) -> None:
    """Who waited briefly and in vain goes on, and has the answer later, once."""

    async def main() -> None:
        go = threading.Event()
        future = worker.call(go.wait, 0.001)
        assert not future.done()
        go.set()
        assert await future is True

    asyncio.run(main())


@pytest.mark.parametrize("brief_s", [0.0, 1e-9])
def test_none_of_many_answers_is_lost_at_the_end_of_the_wait(
    worker: Worker[Any], brief_s: float
) -> None:
    """The wait ends while the answer comes: it is set by one of the two."""

    async def main() -> None:
        for number in range(2000):
            future = worker.call(lambda number=number: number, brief_s)  # type: ignore[misc]
            assert await asyncio.wait_for(future, LONG_S) == number

    asyncio.run(main())


def test_an_answer_that_comes_just_after_the_wait_is_given_once(
    worker: Worker[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    delivers: list[Callable[..., None]] = []

    class Guard:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None:
            if delivers:
                delivers.pop()(7, None)

    locks = iter((threading.Lock(), Guard()))
    monkeypatch.setattr(worker_module, "threading", SimpleNamespace(Lock=locks.__next__))
    monkeypatch.setattr(
        worker, "_calls", SimpleNamespace(put=lambda call: delivers.append(call[1]))
    )
    troubles: list[object] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: troubles.append(context))
        assert await worker.call(lambda: 7, 1e-9) == 7
        await asyncio.sleep(0)

    asyncio.run(main())
    monkeypatch.undo()
    assert not troubles and not delivers


def test_calls_are_made_one_after_the_other_and_not_in_the_loop(worker: Worker[Any]) -> None:
    threads, order = [], []

    def one(number: int) -> Callable[[], None]:
        def call() -> None:
            threads.append(threading.get_ident())
            order.append(number)

        return call

    async def main() -> None:
        await asyncio.gather(*(worker.call(one(number)) for number in range(9)))

    asyncio.run(main())
    assert order == list(range(9))
    assert len(set(threads)) == 1 and threads[0] != threading.get_ident()


def test_who_gave_up_is_told_nothing(worker: Worker[Any]) -> None:
    async def main() -> None:
        go = threading.Event()
        future = worker.call(go.wait)
        future.cancel()
        go.set()
        assert await worker.call(lambda: 7) == 7
        assert future.cancelled()

    asyncio.run(main())


def test_a_loop_that_has_ended_harms_no_later_one(worker: Worker[Any]) -> None:
    go = threading.Event()

    async def leaves() -> None:
        worker.call(go.wait)

    async def comes() -> None:
        assert await worker.call(lambda: 7) == 7

    asyncio.run(leaves())
    go.set()
    asyncio.run(comes())


def test_what_is_only_told_runs_and_its_error_is_nobodys(either: Worker[Any] | Here) -> None:
    done = threading.Event()
    either.tell(fails)
    either.tell(done.set)
    assert done.wait(LONG_S)


def test_it_ends_after_the_calls_before(worker: Worker[Any]) -> None:
    done: list[int] = []
    worker.tell(lambda: done.append(1))
    worker.stop()
    worker.tell(lambda: done.append(2))
    wait_until(lambda: "of a test" not in [thread.name for thread in threading.enumerate()])
    assert done == [1]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("find lab", "find lab"),
        ("storm:a-long-name-1-17", "storm:a-long-na"),
        ("a\x1b[2Jü", "a?[2J?"),
    ],
)
def test_its_thread_is_called_so_by_the_kernel(name: str, shown: str) -> None:
    """What `top -H` shows; an engine's name is its user's, and moves no cursor."""
    made: Worker[str] = Worker(name)

    async def main() -> str:
        return await made.call(Path("/proc/thread-self/comm").read_text)

    try:
        assert asyncio.run(main()) == f"{shown}\n"
    finally:
        made.stop()
