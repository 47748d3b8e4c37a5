"""What the fleet's commands tell of a real Flink, by what `load --record` wrote of it.

recorded/: two minutes of Flink 2.3.0 on OpenJDK 17.0.15 and Linux 6.18, with two CPUs that others
used as well, by `load --policy hr --backend nice --node gw --record DIR`, on the cluster of
tests/engines with two jobs: `single`, whose operator `single-work` burns 1 ms of CPU time a tuple
and is offered 2,000 a second, and `light`, which is offered 50 and burns 20 us.
"""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sched_ctl.errors import UserError
from sched_ctl.metrics.verdicts import Verdict
from sched_ctl.pipeline import ingest
from sched_ctl.pipeline.bottlenecks import held
from sched_ctl.pipeline.compare import compare
from sched_ctl.pipeline.profile import profile
from sched_ctl.pipeline.store import Fleet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A call into the JVM that is broken off takes the connection with it, and all tests that follow.
pytestmark = [pytest.mark.spark, pytest.mark.needs("pyspark", "java"), pytest.mark.timeout(1200)]

RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture(scope="module")
def fleet(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    out = tmp_path_factory.mktemp("flink") / "fleet"
    done = ingest.ingest(spark, str(RECORDED), str(out))
    assert (done.bad, done.repeated, done.named) == (0, 0, [])
    assert done.rows == 240  # 24 records of ten operators
    return Fleet(spark, str(out))


def test_the_profile_is_what_the_jobs_do(fleet: Fleet) -> None:
    queries = {query.name: query for query in profile(fleet).queries}
    assert queries.keys() == {"single", "light"}
    # Some of the time is Flink's own; half of it where a thread wakes up for each tuple.
    for name, burnt_us, own_us, rate in (("single", 1000, 50, 920), ("light", 20, 40, 50)):
        query = queries[name]
        assert (query.engine, query.machine[-8:]) == ("flink", ", 2 CPUs")
        steps = [f"Source: {name}-src", *(f"{name}-{s}" for s in ("parse", "work", "egress"))]
        steps.append(f"{name}-sink: Writer")
        names = [operator.name for operator in query.operators]
        edges = {(names[a], names[b]) for a, b, _ in query.edges}
        assert edges == set(itertools.pairwise(steps))
        work = query.operators[names.index(f"{name}-work")]
        assert work.cost is not None and work.input_rate is not None
        assert burnt_us < work.cost * 1e6 < burnt_us + own_us
        assert work.selectivity == pytest.approx(1.0, rel=0.01)
        assert work.input_rate == pytest.approx(rate, rel=0.02)
        assert work.hours == pytest.approx(119 / 3600, rel=0.01)


def test_the_bottleneck_is_the_one_that_flink_had(fleet: Fleet) -> None:
    [found] = held(fleet)
    assert (found.engine, found.query, found.operator) == ("flink", "single", "single-work")
    assert found.verdict is Verdict.SINGLE_THREAD_BOUND
    assert "replicas" in found.advice
    assert (found.needed, found.replicas) == (3, 1)  # 2,000 a second come, and one does 920
    assert (found.spans, found.nodes, found.share) == (1, 1, 1.0)
    assert found.held_s == pytest.approx(119, rel=0.01)
    assert found.lost_s == pytest.approx(3 * found.held_s)  # the source and the parser, too
    with pytest.raises(UserError, match="only one policy was recorded: hr"):
        compare(fleet)
