"""A real Flink under sched_ext: its operators' threads are ours, it goes on, all is put back."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines import cluster

pytestmark = [pytest.mark.vm, pytest.mark.engine, pytest.mark.needs("root", "java")]

KERNEL = "7.3"
CPU_S = 250
LIMIT_S = 900.0  # five minutes on a busy machine; in real time more than nine
ROOT = Path(__file__).parents[2]


Asked = tuple[tuple[str, ...], dict[str, Any]]


def early() -> Asked | None:
    """For `vm`; a guest can write nothing here, and starts sooner with the classes left ready."""
    return asked() if cluster.has_run() else None


def asked() -> Asked:
    cluster.job_jar(cluster.download())  # a guest has no network, and can write nothing here
    words = (
        *(KERNEL, "env", f"PYTHONPATH={ROOT / 'tests'}:{ROOT / 'tests' / 'helpers'}"),
        f"SCHED_CTL_ENGINES={cluster.CACHE}",
        *(sys.executable, str(Path(__file__).with_name("flink_inside.py"))),
    )
    return words, {"cpus": 1, "icount": True, "memory": "3G", "timeout_s": LIMIT_S}


@pytest.mark.timeout(2 * LIMIT_S + 120)
def test_flink_under_sched_ext(vm: Callable[..., Any], kernel_image: Callable[[str], Path]) -> None:
    kernel_image(KERNEL)
    words, options = asked()
    done = vm(*words, **options)
    print(done.output)
    assert done.returncode == 0, done.console
