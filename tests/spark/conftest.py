"""One small Spark for all tests here."""

import shutil
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    if shutil.which("java") is None:
        pytest.skip("needs java")
    from sched_ctl.pipeline.spark import spark as started

    settings = {
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "1",
        # Many small jobs: what the better compiler gains, it never gets back.
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    with started("tests", "local[1]", settings) as made:
        yield made
