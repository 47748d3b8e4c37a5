"""The manifest for Kubernetes: well-formed, in itself consistent, and about our own image."""

import tomllib

import msgspec
import pytest
from manifest import PATH, ConfigMap, DaemonSet, objects

from sched_ctl import __version__
from sched_ctl.kernel import containers
from sched_ctl.runfolder import RunFolder


def test_it_is_one_and_its_parts_name_each_other() -> None:
    namespace, config, daemon = objects(PATH.read_text())
    assert isinstance(config, ConfigMap) and isinstance(daemon, DaemonSet)
    assert config.metadata.namespace == daemon.metadata.namespace == namespace.metadata.name
    tomllib.loads(config.data["sched-ctl.toml"])
    labels = daemon.spec.template.metadata.labels
    assert daemon.spec.selector.match_labels.items() <= labels.items()
    pod = daemon.spec.template.spec
    volumes = {volume.name: volume for volume in pod.volumes}
    [container] = pod.containers
    assert volumes.keys() == {mount.name for mount in container.volume_mounts}
    used = [volume.config_map.name for volume in pod.volumes if volume.config_map]
    assert used == [config.metadata.name]
    assert container.image == f"sched-ctl:{__version__}"
    [variable] = container.env
    assert variable.value_from.field_ref.field_path == "spec.nodeName"
    assert container.args == ("load", f"--node=$({variable.name})")
    mounted = {mount.mount_path for mount in container.volume_mounts}
    assert {
        str(containers.POD_LOGS),
        str(containers.CONTAINER_LOGS),
        str(RunFolder().path),
    } <= mounted
    assert all(not v.host_path or v.host_path.path in mounted for v in pod.volumes)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("hostPID", "hostPid"),
        ("hostPID: true", "hostPID: 'true'"),
        ("apps/v1", "v1"),
        ("mountPath: /run", "path: /run"),
        ("kind: DaemonSet", "kind: Daemonset"),
        ("readOnly: true", "readonly: true"),
    ],
)
def test_what_the_server_would_leave_out_or_refuse_is_seen(right: str, wrong: str) -> None:
    text = PATH.read_text()
    assert right in text
    with pytest.raises(msgspec.ValidationError):
        objects(text.replace(right, wrong, 1))
