"""`./dev package` refuses what it cannot make, before it makes anything."""

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
