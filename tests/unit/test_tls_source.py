"""The HTTP client behind TLS: what is checked of the server, and what becomes of secrets."""

import base64
import logging
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import certificates
import pytest
from certificates import Certificates

from sched_ctl.drivers.sources.http import Endpoint
from sched_ctl.errors import EngineError, UserError
from sched_ctl.model.access import Access

pytestmark = pytest.mark.needs("openssl")

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
OTHER_NAME = "127.1"  # of 127.0.0.1, for which no /etc/hosts is needed
DENIED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
PASSWORD = "a pass: wörd"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates.make(tmp_path_factory.mktemp("certificates"))


@contextmanager
def server(
    made: Certificates, *, client: bool = False, password: str | None = None
) -> Iterator[tuple[int, list[bytes]]]:
    """Its port, and the requests that it got. client: it asks for the client's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server, made.server_key)
    if client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(made.client)
    requests: list[bytes] = []
    wanted = None if password is None else base64.b64encode(f"me:{password}".encode())

    def answer(raw: socket.socket) -> None:
        with suppress(OSError), raw, context.wrap_socket(raw, server_side=True) as connection:
            while request := connection.recv(65536):
                requests.append(request)
                denied = wanted is not None and b"Authorization: Basic " + wanted not in request
                connection.sendall(DENIED if denied else OK)

    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(
                        target=answer, args=listening.accept()[:1], daemon=True
                    ).start()

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1], requests
        listening.shutdown(socket.SHUT_RDWR)


def test_one_connection_for_all_requests(made: Certificates) -> None:
    with server(made) as (port, requests):
        endpoint = Endpoint("127.0.0.1", port, access=Access(ca=str(made.server)))
        assert [endpoint.get("/x", 5) for _ in range(20)] == [b"ok"] * 20
        assert len(requests) == 20
        endpoint.close()


def test_a_stranger_is_told_nothing(made: Certificates, tmp_path: Path) -> None:
    """Neither one whose certificate nobody knows, nor one that has it for another name."""
    secret = tmp_path / "password"
    secret.write_text(PASSWORD)
    secret.chmod(0o600)
    known = Access(ca=str(made.server), user="me", password_file=str(secret))
    unknown = Access(ca=str(made.client), user="me", password_file=str(secret))
    with server(made) as (port, requests):
        with pytest.raises(EngineError, match="certificate is not accepted"):
            Endpoint("127.0.0.1", port, access=unknown).get("/", 5)
        with pytest.raises(EngineError, match="certificate is not accepted"):
            Endpoint(OTHER_NAME, port, access=known).get("/", 5)
        with pytest.raises(EngineError, match="certificate is not accepted"):
            Endpoint("127.0.0.1", port, access=Access(ca=known.ca, name="other.test")).get("/", 5)
        assert requests == []
        by_name = Access(ca=known.ca, name="flink.test")
        assert Endpoint(OTHER_NAME, port, access=by_name).get("/", 5) == b"ok"


def test_a_client_certificate(made: Certificates) -> None:
    ours = Access(ca=str(made.server), certificate=str(made.client), key=str(made.client_key))
    with server(made, client=True) as (port, _):
        assert Endpoint("127.0.0.1", port, access=ours).get("/", 5) == b"ok"
        with pytest.raises(EngineError, match="cannot be reached"):
            Endpoint("127.0.0.1", port, access=Access(ca=ours.ca)).get("/", 5)


def test_a_password_is_in_no_log(
    made: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = tmp_path / "password"
    secret.write_text(PASSWORD + "\nwhat follows is a comment\n")
    secret.chmod(0o600)
    access = Access(ca=str(made.server), user="me", password_file=str(secret))
    with server(made, password=PASSWORD) as (port, _):
        assert Endpoint("127.0.0.1", port, access=access).get("/", 5) == b"ok"
        secret.write_text("wrong")
        with pytest.raises(EngineError, match="status 401") as refused:
            Endpoint("127.0.0.1", port, access=access).get("/", 5)
    coded = base64.b64encode(f"me:{PASSWORD}".encode()).decode()
    for told in (caplog.text, repr(refused.value), str(access)):
        assert PASSWORD not in told and coded not in told and "wrong" not in told


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_secrets_that_others_may_read_are_refused(
    made: Certificates, tmp_path: Path, mode: int
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(made.client_key.read_bytes())
    secret.chmod(mode)
    for access in (
        Access(user="me", password_file=str(secret)),
        Access(certificate=str(made.client), key=str(secret)),
    ):
        with pytest.raises(UserError, match=f"others may read .* {mode:o}"):
            Endpoint("127.0.0.1", 1, access=access)


def test_what_cannot_be_used_is_said_before_anybody_is_asked(
    made: Certificates, tmp_path: Path
) -> None:
    certificate, key = str(made.client), str(made.client_key)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)  # nobody writes into it: no waiting for that
    locked = tmp_path / "locked.key"
    encrypted = os.popen(f"openssl pkey -in {key} -aes128 -passout pass:x").read()
    locked.write_text(encrypted)
    locked.chmod(0o600)
    for access, what in (
        (Access(ca="/nowhere"), "No such file"),
        (Access(ca=key), "ca"),
        (Access(certificate=certificate), "needs its key"),
        (Access(user="me"), "needs a password_file"),
        (Access(user="m:e", password_file=key), "colon"),
        (Access(user="me", password_file=str(fifo)), "is no file"),
        (Access(user="me", password_file="/nowhere"), "No such file"),
        (Access(certificate=str(made.server), key=key), "KEY_VALUES_MISMATCH"),
        (Access(certificate=certificate, key=str(locked)), "locked.key"),
    ):
        with pytest.raises(UserError, match=what):
            Endpoint("127.0.0.1", 1, access=access)


def test_a_greeting_that_is_not_answered_ends_at_the_deadline(made: Certificates) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = Endpoint(
            "127.0.0.1", silent.getsockname()[1], access=Access(ca=str(made.server))
        )
        with pytest.raises(EngineError, match="did not answer within"):
            endpoint.get("/", 0.3)
        assert not Endpoint("127.0.0.1", silent.getsockname()[1]).speaks_tls(0.3)


def test_who_speaks_tls(made: Certificates) -> None:
    with server(made) as (port, _), server(made, client=True) as (asking, _):
        assert Endpoint("127.0.0.1", port).speaks_tls(5)
        assert Endpoint("127.0.0.1", asking).speaks_tls(5)
    with socket.create_server(("127.0.0.1", 0)) as plain:

        def answer() -> None:
            connection, _ = plain.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        assert not Endpoint("127.0.0.1", plain.getsockname()[1]).speaks_tls(5)
