"""A real Flink whose REST interface speaks TLS and asks for our certificate."""

import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import certificates
import pytest
from certificates import Certificates

from engines.cluster import Cluster, running
from engines.compete import loaded
from sched_ctl.drivers import Target
from sched_ctl.drivers.flink import driver as flink
from sched_ctl.errors import EngineError
from sched_ctl.model.access import Access
from sched_ctl.model.topology import Snapshot
from support import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.needs("root", "java", "openssl")]

STORE_PASSWORD = "secret-of-a-store"


def stores(made: Certificates, folder: Path) -> dict[str, str]:
    """Flink's settings, with its own key and the only client that it knows in Java's stores."""
    key, trust = folder / "key.p12", folder / "trust.p12"
    password = f"pass:{STORE_PASSWORD}"
    subprocess.run(
        [
            *("openssl", "pkcs12", "-export", "-name", "flink", "-passout", password),
            *("-in", made.server, "-inkey", made.server_key, "-out", key),
        ],
        check=True,
        timeout=60,
    )
    for alias, file in (("client", made.client), ("flink", made.server)):
        subprocess.run(
            [
                *("keytool", "-importcert", "-noprompt", "-storepass", STORE_PASSWORD),
                *("-alias", alias, "-file", file, "-keystore", trust),
            ],
            check=True,
            capture_output=True,
            timeout=60,
        )
    prefix = "security.ssl.rest"
    return {
        f"{prefix}.enabled": "true",
        f"{prefix}.authentication-enabled": "true",
        f"{prefix}.keystore": str(key),
        f"{prefix}.keystore-password": STORE_PASSWORD,
        f"{prefix}.key-password": STORE_PASSWORD,
        f"{prefix}.truststore": str(trust),
        f"{prefix}.truststore-password": STORE_PASSWORD,
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured(made: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("tls")
    own = ssl.create_default_context(cafile=made.server)
    own.load_cert_chain(made.client, made.client_key)
    with running(folder / "cluster", settings=stores(made, folder), secured=own) as cluster:
        cluster.submit(name="t", rate=500)
        yield cluster


def test_found_and_read(secured: Cluster, made: Certificates) -> None:
    address = f"127.0.0.1:8081@{secured.pid}"
    assert Target("flink", address, secured.pid) in flink.find()  # before anybody names anything
    ours = Access(ca=str(made.server), certificate=str(made.client), key=str(made.client_key))
    driver = flink.connect(Target("flink", address, secured.pid, access=ours))
    try:
        snapshot = wait_until(lambda: _complete(driver), 30)
    finally:
        driver.close()
    assert snapshot is not None
    assert {operator.query for operator in snapshot.topology.operators} == {"t"}
    for access, why in (
        (None, "speaks TLS: the configuration"),
        (Access(ca=str(made.server)), "cannot be reached"),  # no certificate of ours
        (
            Access(ca=str(made.client), certificate=ours.certificate, key=ours.key),
            "certificate is not accepted",
        ),
    ):
        with pytest.raises(EngineError, match=why):
            flink.connect(Target("flink", address, secured.pid, access=access))


def _complete(driver: flink.FlinkDriver) -> Snapshot | None:
    snapshot = driver.poll(5)
    operators = snapshot.topology.operators
    return snapshot if operators and all(o.threads for o in operators) else None


def test_load(secured: Cluster, made: Certificates, tmp_path: Path) -> None:
    """From the configuration to nice values, and no secret in what is logged or shown."""
    arguments = [
        *("--policy", "random", "--backend", "nice"),
        *("--access", f"flink:*.ca={made.server}"),
        *("--access", f"flink:*.certificate={made.client}"),
        *("--access", f"flink:*.key={made.client_key}"),
    ]
    with loaded(secured, tmp_path, arguments, 2):
        pass
    key = made.client_key.read_text().splitlines()[1]
    assert key not in (tmp_path / "load.log").read_text()


def test_without_certificates_it_is_listed_with_the_reason(secured: Cluster) -> None:
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("sched-ctl")), "engines", "--engine", "flink"),
            *("--config", os.devnull, "--json"),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert f"127.0.0.1:8081@{secured.pid}" in done.stdout
    assert "speaks TLS" in done.stdout
