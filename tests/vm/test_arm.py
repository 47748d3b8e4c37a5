"""The package for arm64, on an emulated arm64 machine: installed, attached, traced, put back.

It takes qemu-system-arm, and the compiler gcc-aarch64-linux-gnu. With SCHED_CTL_EACH_KERNEL=1 it is
done with pages of 16 kB, too.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import releases
from vm.inside import MARK

COMPILER = "aarch64-linux-gnu-gcc"
pytestmark = [
    pytest.mark.vm,
    pytest.mark.needs("root", "cc", "clang"),
    pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"needs {COMPILER}"),
]

ROOT = Path(__file__).parents[2]
EACH = pytest.mark.skipif(
    "SCHED_CTL_EACH_KERNEL" not in os.environ, reason="needs SCHED_CTL_EACH_KERNEL=1"
)
KERNEL = "6.18-arm64"
KERNELS = (KERNEL, pytest.param("6.18-arm64-16k", marks=EACH))
LIMIT_S = 1500.0  # beside other guests
CPU_S = 60
CHECKS = 6


Asked = tuple[tuple[str, ...], dict[str, Any]]


def released() -> Path | None:
    """The package, if a release was made for other tests."""
    return next(
        (path for folder in releases.MADE for path in folder.glob("*~deb13_arm64.deb")), None
    )


def early() -> Asked | None:
    """For `vm`."""
    package = released()
    return asked(KERNEL, package) if package else None


def asked(kernel: str, package: Path) -> Asked:
    inside = str(Path(__file__).with_name("arm_inside.py"))
    words = (kernel, "/usr/bin/python3", inside, str(package))
    options = {"cpus": 1, "icount": True, "icount_shift": 2, "timeout_s": LIMIT_S}
    return words, {**options, "show": (package.parent,)}


@pytest.fixture(scope="module")
def package(kernel_image: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made where there is a guest for it."""
    kernel_image(KERNEL)
    if (package := released()) is not None:
        return package
    folder = tmp_path_factory.mktemp("package")
    releases.run([*releases.UNPACKED, ROOT / "packaging" / "deb", folder, "13", "arm64"], LIMIT_S)
    [package] = folder.glob("*.deb")
    return package


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.timeout(2 * LIMIT_S + 300)
def test_the_package_works(
    kernel: str, package: Path, vm: Callable[..., Any], kernel_image: Callable[[str], Path]
) -> None:
    kernel_image(kernel)
    words, options = asked(kernel, package)
    done = vm(*words, **options)
    print(done.output)
    assert done.returncode == 0, done.output + done.console
    lines = [line for line in done.output.splitlines() if line.startswith(MARK)]
    ends = [end for line in lines if "end" in (end := json.loads(line.removeprefix(MARK)))]
    assert [end["outcome"] for end in ends] == ["passed"] * CHECKS
