"""Builds the compiled parts (lab engine, simulator, BPF objects) into ctl/bin when packaging, and
man pages and shell completion from what the commands say of themselves."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from setuptools import Distribution, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

from distutils.command.install_data import install_data  # isort: skip  (that of setuptools)

HERE = Path(__file__).parent
# folder with a Makefile -> the compiler it needs, and a header that comes by itself
PARTS = {
    "engine": (("cc", "gcc"), ""),
    "sim": (("cc", "gcc"), ""),
    "bpf": (("clang-19", "clang"), "bpf/bpf_core_read.h"),
}


class BuildWithMake(build_py):
    """`make` each part, then collect the Python files and what `make` left in ctl/bin."""

    def run(self) -> None:
        for folder, (compilers, header) in PARTS.items():
            if not (HERE / folder / "Makefile").exists():
                continue
            # Not fatal: a gateway may need only the other part, and the commands that need this
            # one say that it was not built.
            compiler = next(filter(shutil.which, compilers), None)
            if compiler is None:
                self.warn(f"{folder}/ is left out: none of {', '.join(compilers)} was found")
            elif header and not includes(compiler, header):
                self.warn(f"{folder}/ is left out: {compiler} does not find <{header}>")
            else:
                subprocess.run(["make", "-C", str(HERE / folder)], check=True)
        if not self.editable_mode:  # plugins are found by their files: none of an earlier build's
            shutil.rmtree(Path(self.build_lib, "sched_ctl"), ignore_errors=True)
        super().run()
        if not self.editable_mode:  # else they are read where they lie
            workloads = Path(self.build_lib, "sched_ctl", "bin", "workloads")
            workloads.mkdir(parents=True, exist_ok=True)
            for graph in sorted((HERE / "bench" / "workloads").glob("*.graph")):
                shutil.copy(graph, workloads)


def includes(compiler: str, header: str) -> bool:
    command = [compiler, "-E", "-x", "c", "-include", header, os.devnull]
    return subprocess.run(command, capture_output=True).returncode == 0


class InstallTexts(install_data):
    """Man pages and completion, where man(1) and the shells look below /usr/local or a venv."""

    def run(self) -> None:
        build = self.get_finalized_command("build_py")
        if build.editable_mode:
            return
        made = Path(build.build_lib).absolute().parent / "texts"
        shutil.rmtree(made, ignore_errors=True)
        # Where pip builds in a place of its own, that is on the path, too.
        path = f"{Path(build.build_lib).absolute()}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        done = subprocess.run(
            [sys.executable, HERE / "packaging" / "texts.py", made],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:  # the libraries of the command line are not here
            self.warn(f"man pages and completion are left out: {done.stderr.strip()[-300:]}")
            return
        zsh = made / "share" / "zsh"
        (zsh / "vendor-completions").rename(zsh / "site-functions")
        for file in sorted(path for path in made.rglob("*") if path.is_file()):
            target = Path(self.install_dir, file.relative_to(made))
            self.mkpath(str(target.parent))
            self.outfiles.append(self.copy_file(str(file), str(target))[0])


class Binary(Distribution):
    """Says that there is more than Python in it, so that the wheel is for this kind of machine."""

    def has_ext_modules(self) -> bool:
        return True

    def has_data_files(self) -> bool:
        return True


class AnyPython(bdist_wheel):
    """None of what `make` built knows of Python: the wheel serves every version of it."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


def packages() -> list[str]:
    """The packages below each folder that pyproject.toml maps to one."""
    with (HERE / "pyproject.toml").open("rb") as file:
        folders = tomllib.load(file)["tool"]["setuptools"]["package-dir"]
    return [
        name
        for package, folder in folders.items()
        for name in (package, *(f"{package}.{below}" for below in find_packages(HERE / folder)))
    ]


setup(
    packages=packages(),
    distclass=Binary,
    cmdclass={"build_py": BuildWithMake, "bdist_wheel": AnyPython, "install_data": InstallTexts},
)
