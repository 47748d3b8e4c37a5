"""The package for arm64, on an emulated arm64 machine: installed, attached, traced, put back.

With pages of 4 and of 16 kB.

    SCHED_CTL_ARM=1 ./dev test tests/vm/test_arm.py

It takes about two minutes of CPU time, qemu-system-arm, and the compiler gcc-aarch64-linux-gnu.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vm.inside import MARK

COMPILER = "aarch64-linux-gnu-gcc"
pytestmark = [
    pytest.mark.vm,
    pytest.mark.needs("root", "cc", "clang"),
    pytest.mark.skipif("SCHED_CTL_ARM" not in os.environ, reason="needs SCHED_CTL_ARM=1"),
    pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs {COMPILER}"),
]

ROOT = Path(__file__).parents[2]
KERNELS = ("6.18-arm64", "6.18-arm64-16k")
LIMIT_S = 600.0
CHECKS = 6


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.timeout(2 * LIMIT_S + 300)
def test_the_package_works(
    kernel: str, vm: Callable[..., Any], kernel_image: Callable[[str], Path], tmp_path: Path
) -> None:
    kernel_image(kernel)
    subprocess.run([ROOT / "packaging" / "deb", tmp_path, "13", "arm64"], check=True)
    [package] = tmp_path.glob("*.deb")
    command = ["/usr/bin/python3", str(Path(__file__).with_name("arm_inside.py")), str(package)]
    done = vm(kernel, *command, cpus=1, icount=True, timeout_s=LIMIT_S, show=(tmp_path,))
    print(done.output)
    assert done.returncode == 0, done.output + done.console
    lines = [line for line in done.output.splitlines() if line.startswith(MARK)]
    ends = [end for line in lines if "end" in (end := json.loads(line.removeprefix(MARK)))]
    assert [end["outcome"] for end in ends] == ["passed"] * CHECKS
