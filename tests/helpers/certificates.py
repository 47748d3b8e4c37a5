"""Certificates for tests: of a server and of a client, each its own authority."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Certificates", "make"]


@dataclass(frozen=True)
class Certificates:
    """PEM files. The keys may be read by their owner alone."""

    server: Path
    server_key: Path
    client: Path
    client_key: Path


def make(folder: Path) -> Certificates:
    """Valid for 127.0.0.1 and for the name flink.test."""
    made = []
    for who, names in (("server", "IP:127.0.0.1,DNS:flink.test"), ("client", "DNS:client.test")):
        certificate, key = folder / f"{who}.pem", folder / f"{who}.key"
        subprocess.run(
            [
                # RSA: Flink's own list of cipher suites takes no other keys.
                *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
                *("-subj", f"/CN={who}", "-addext", f"subjectAltName={names}"),
                *("-keyout", key, "-out", certificate),
            ],
            check=True,
            capture_output=True,
            timeout=60,
        )
        key.chmod(0o600)
        made += [certificate, key]
    return Certificates(*made)
