"""One Flink cluster for all tests of a file that do not break it.

Not longer: it keeps a fifth of a CPU busy, which the guests need.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.cluster import Cluster, running


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("flink") / "cluster") as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """The shared cluster, without jobs before and after."""
    yield shared_cluster
    shared_cluster.cancel_all()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where a job writes when its tuples left it."""
    return tmp_path / "out.txt"
