"""TLS and passwords for engines whose web interface asks for them.

A password goes only to a server whose certificate was checked: whoever takes an engine's port, or
starts something that looks like an engine, learns nothing. What is secret is read when a connection
is made, and appears in no error.
"""

import base64
import os
import ssl
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from sched_ctl.errors import UserError
from sched_ctl.model.access import Access

__all__ = ["authorization", "context", "stranger"]

LONGEST = 65536  # bytes of a password file that are read


def context(access: Access) -> ssl.SSLContext:
    """What checks the server's certificate, and shows ours. Raises UserError."""
    try:
        made = ssl.create_default_context(cafile=access.ca or None)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise UserError(f"access: ca: {access.ca}: {_why(error)}") from None
    if bool(access.certificate) != bool(access.key):
        raise UserError("access: a certificate needs its key, and a key its certificate")
    if access.certificate:
        with _secret(access.key, "key") as descriptor:
            try:
                made.load_cert_chain(
                    access.certificate,
                    f"/proc/self/fd/{descriptor}",  # the very file whose mode was looked at
                    # Else OpenSSL asks for a passphrase on the terminal, and waits.
                    password=lambda: b"",
                )
            except (OSError, ValueError) as error:
                raise UserError(
                    f"access: {access.certificate} with {access.key}: {_why(error)}",
                    "both are PEM files, the key without a passphrase",
                ) from None
    return made


def stranger() -> ssl.SSLContext:
    """What takes any certificate, only to see whether somebody speaks TLS; nothing is sent."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    return made


def authorization(access: Access) -> bytes | None:
    """The header of this name, or None if there is no user. Raises UserError."""
    if bool(access.user) != bool(access.password_file):
        raise UserError("access: a user needs a password_file, and a password_file its user")
    if not access.user:
        return None
    if ":" in access.user:
        raise UserError("access: user: it cannot hold a colon (RFC 7617)")
    with _secret(access.password_file, "password_file") as descriptor:
        line = os.read(descriptor, LONGEST).split(b"\n", 1)[0].rstrip(b"\r")
    return b"Basic " + base64.b64encode(access.user.encode() + b":" + line)


@contextmanager
def _secret(path: str, key: str) -> Iterator[int]:
    """A descriptor of a file that nobody but its owner may read, who is root or ourselves."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise UserError(f"access: {key}: {path}: {error.strerror}") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UserError(f"access: {key}: {path} is no file")
        if found.st_mode & 0o077:
            raise UserError(
                f"access: {key}: others may read {path} (mode {stat.S_IMODE(found.st_mode):o})",
                f"chmod 600 {path}, and change what is secret: it may have been read",
            )
        if found.st_uid not in (0, os.geteuid()):
            raise UserError(
                f"access: {key}: {path} belongs to uid {found.st_uid}", "chown it to root"
            )
        yield descriptor
    finally:
        os.close(descriptor)


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "no certificate or key that OpenSSL reads"
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
