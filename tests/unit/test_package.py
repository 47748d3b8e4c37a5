"""`./dev package` refuses what it cannot make, before it makes anything."""

import platform
import subprocess
from pathlib import Path

import pytest

DEB = Path(__file__).parents[2] / "packaging" / "deb"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("11",), "no Debian release '11': 12 or 13"),
        (("13", "mips"), "no architecture 'mips': amd64 or arm64"),
    ],
)
def test_what_it_cannot_make(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    out = tmp_path / "dist"
    done = subprocess.run([DEB, out, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert said in done.stderr
    assert not list(out.iterdir())


@pytest.mark.needs("cc")
def test_bpf_objects_are_for_the_machine_that_the_compiler_is_for(tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho aarch64-linux-gnu\n")
    compiler.chmod(0o755)
    make = ["make", "-n", "-B", "-C", str(DEB.parents[1] / "bpf")]
    for words, kind in (([f"CC={compiler}"], "arm64"), (["CC=/nowhere/cc"], own_kind())):
        done = subprocess.run([*make, *words], capture_output=True, text=True, check=True)
        assert f"-D__TARGET_ARCH_{kind} " in done.stdout


def own_kind() -> str:
    return {"x86_64": "x86", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
