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
        # Many small jobs: code made for a plan, plans made anew after each stage, and the better
        # compiler never get back what they cost. test_fleet_cluster.py has all but the last, as
        # users do, and compares what is found with what this Spark finds, to the row.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xmn400m "
        "-XX:ReservedCodeCacheSize=240m",  # one compiler alone has a fifth, and sweeps it
    }
    with started("tests", "local[1]", settings) as made:
        yield made
