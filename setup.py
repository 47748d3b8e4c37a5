"""Builds the compiled parts (the lab engine, the BPF objects) into ctl/bin when packaging."""

import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
# folder with a Makefile -> the compiler it needs
PARTS = {"engine": ("cc", "gcc"), "sim": ("cc", "gcc"), "bpf": ("clang-19", "clang")}


class BuildWithMake(build_py):
    """`make` each part, then collect the Python files and what `make` left in ctl/bin."""

    def run(self) -> None:
        for folder, compilers in PARTS.items():
            if not (HERE / folder / "Makefile").exists():
                continue
            if not any(map(shutil.which, compilers)):
                # Not fatal: a gateway may need only the other part, and the commands that need
                # this one say that it was not built.
                self.warn(f"{folder}/ is left out: none of {', '.join(compilers)} was found")
                continue
            subprocess.run(["make", "-C", str(HERE / folder)], check=True)
        super().run()


setup(cmdclass={"build_py": BuildWithMake})
