"""The page for Prometheus: one server an address, and nothing kept for who does not read."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from sched_ctl.errors import UserError
from sched_ctl.service import endpoint


def page(text: str) -> endpoint.Page:
    def told(*, openly: bool = False) -> str:
        return text

    return told


async def scraped(path: Path) -> str:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer.decode()


def test_who_asks_often_has_the_same_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "KEPT_S", 1000.0)
    made = []

    def told(*, openly: bool = False) -> str:
        made.append(openly)
        return f"page {len(made)}"

    async def often() -> list[str]:
        path = tmp_path / "page.sock"
        async with endpoint.serve(str(path), told):
            first = [await scraped(path) for _ in range(3)]
            monkeypatch.setattr(endpoint, "KEPT_S", 0.0)
            monkeypatch.setattr(endpoint, "SELDOM", 0)
        async with endpoint.serve(str(path), told):
            return first + [await scraped(path) for _ in range(2)]

    assert [page[-6:] for page in asyncio.run(often())] == [*["page 1"] * 3, "page 2", "page 3"]


async def taken(address: str) -> None:
    with pytest.raises(endpoint.Taken, match="somebody listens"):
        async with endpoint.serve(address, page("second")):
            pass


def test_a_socket_that_answers_is_not_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "page.sock"

    async def both() -> None:
        async with endpoint.serve(str(path), page("first")):
            await taken(str(path))
            assert "first" in await scraped(path)
        assert not path.exists()

    asyncio.run(both())


def test_a_socket_that_a_killed_one_left_is(tmp_path: Path) -> None:
    path = tmp_path / "page.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))

    async def one() -> None:
        async with endpoint.serve(str(path), page("first")):
            assert "first" in await scraped(path)

    asyncio.run(one())
    assert not path.exists()


def test_what_lies_there_by_now_stays(tmp_path: Path) -> None:
    path = tmp_path / "page.sock"

    async def one() -> None:
        async with endpoint.serve(str(path), page("first")):
            path.unlink()
            path.write_text("somebody else's")

    asyncio.run(one())
    assert path.read_text() == "somebody else's"


def refused(path: Path) -> str:
    async def one() -> None:
        async with endpoint.serve(str(path), page("none")):
            pass

    with pytest.raises(UserError) as error:
        asyncio.run(one())
    assert not isinstance(error.value, endpoint.Taken)
    return error.value.message


def test_why_there_can_be_no_socket_is_said(tmp_path: Path) -> None:
    (tmp_path / "page").write_text("somebody else's")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("page", "link"):
        assert refused(tmp_path / name).endswith("what lies there is no socket")
        assert os.path.lexists(tmp_path / name)
    assert refused(tmp_path / ("x" * 200)).endswith("path too long")
    assert refused(tmp_path / "no folder" / "page").endswith("No such file or directory")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_a_port_that_is_in_use_is_told_as_such() -> None:
    address = f"127.0.0.1:{free_port()}"

    async def both() -> None:
        async with endpoint.serve(address, page("first")):
            await taken(address)

    asyncio.run(both())


@pytest.mark.parametrize("request_", [b"", b"GET /metrics HTTP/1.1\r\n\r\n"])
def test_who_comes_and_says_or_reads_nothing_keeps_nobody_out(
    request_: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "REQUEST_S", 60.0)
    path = tmp_path / "page.sock"

    async def beside_idle_ones() -> str:
        async with endpoint.serve(str(path), page("x" * (1 << 20))):  # more than the kernel keeps
            idle = []
            for _ in range(endpoint.CLIENTS):
                reader, writer = await asyncio.open_unix_connection(path, limit=1 << 12)
                writer.write(request_)
                if request_:
                    assert await reader.read(4) == b"HTTP"  # it is being answered
                idle.append(writer)
            answer = await scraped(path)
            for writer in idle:
                writer.close()
            return answer

    assert " 200 " in asyncio.run(beside_idle_ones())


def test_nothing_is_kept_for_who_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "REQUEST_S", 0.3)
    port, length = free_port(), 64 << 20  # more than the kernel keeps

    async def slow() -> int:
        async with endpoint.serve(f"127.0.0.1:{port}", page("x" * length)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 12)
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            await asyncio.sleep(3 * endpoint.REQUEST_S)
            read = 0
            try:
                while part := await reader.read(1 << 20):
                    read += len(part)
            except ConnectionResetError:
                pass
            writer.close()
            return read

    assert asyncio.run(slow()) < length
