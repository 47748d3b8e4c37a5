"""The image: built from the package, run by podman in a guest, beside an engine's container."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import manifest
import pytest
import releases

pytestmark = [pytest.mark.vm, pytest.mark.needs("root", "mmdebstrap", "podman", "cc", "clang")]

ROOT = Path(__file__).parents[2]
KERNEL = "6.18"
LIMIT_S = 600.0


@pytest.fixture
def image(release: Path, tmp_path: Path) -> Path:
    """The root of a container of it. No mount of podman's outlives the shell."""
    own = f"podman --root {tmp_path}/storage --runroot $run --storage-driver vfs"
    base = releases.kept_root("trixie")
    script = f"""
        run=$(mktemp -d -p /tmp)  # podman wants it short
        trap 'rm -rf $run {tmp_path}/storage' EXIT
        {own} import -q {base} localhost/debian
        {own} build -q --isolation=chroot --network=host --build-arg BASE=localhost/debian \
            -f {ROOT}/packaging/Containerfile -t localhost/sched-ctl {release}
        made=$({own} create localhost/sched-ctl)
        {own} inspect --format '{{{{.Config.Entrypoint}}}} {{{{.Config.Cmd}}}}' localhost/sched-ctl
        mkdir {tmp_path}/image
        {own} export $made | tar -x -C {tmp_path}/image
        {own} rm $made
    """
    said = releases.run(["unshare", "--mount", "sh", "-euc", script])
    assert "[sched-ctl] [load]" in said
    return tmp_path / "image"


@pytest.mark.timeout(2 * LIMIT_S + 300)
def test_it_orders_an_engine_in_another_container(
    image: Path, vm: Callable[..., Any], kernel_image: Callable[[str], Path]
) -> None:
    kernel_image(KERNEL)
    made = manifest.objects(manifest.PATH.read_text())
    [daemon] = [one for one in made if isinstance(one, manifest.DaemonSet)]
    flags = json.dumps(manifest.podman_flags(daemon.spec.template.spec))
    command = [sys.executable, str(Path(__file__).with_name("image_inside.py")), str(image), flags]
    done = vm(KERNEL, *command, memory="2G", timeout_s=LIMIT_S, write=(image,), show=(image,))
    print(done.output)
    assert done.returncode == 0, done.console
    assert "all is put back" in done.output
