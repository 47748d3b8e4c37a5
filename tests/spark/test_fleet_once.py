"""What comes to a fleet in pieces: some of the cases of `stress.once`."""

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from stress import once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.needs("pyspark", "java"), pytest.mark.timeout(1200)]


def test_each_line_counts_once_however_it_comes(spark: "SparkSession", tmp_path: Path) -> None:
    chance = random.Random(2)
    cases = [once.case(f"n{number}", chance) for number in range(60)]
    assert once.wrong(spark, tmp_path, cases, chance) == 0
