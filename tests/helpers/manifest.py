"""What packaging/kubernetes.yaml may say, and what that is for podman.

A field that is not known here is refused: the API server would leave out a misspelt one in silence.
"""

from pathlib import Path
from typing import Literal

import msgspec.yaml
from msgspec import Struct

__all__ = ["PATH", "Container", "DaemonSet", "objects", "podman_flags"]

PATH = Path(__file__).parents[2] / "packaging" / "kubernetes.yaml"


class Strict(Struct, forbid_unknown_fields=True, rename="camel"):
    pass


class Metadata(Strict):
    name: str = ""
    namespace: str = ""
    labels: dict[str, str] = {}


class Namespace(Strict, tag_field="kind", tag="Namespace"):
    api_version: Literal["v1"]
    metadata: Metadata


class ConfigMap(Strict, tag_field="kind", tag="ConfigMap"):
    api_version: Literal["v1"]
    metadata: Metadata
    data: dict[str, str]


class Capabilities(Strict):
    add: tuple[str, ...]
    drop: tuple[str, ...]


class Profile(Strict):
    type: Literal["Unconfined", "RuntimeDefault"]


class SecurityContext(Strict):
    capabilities: Capabilities
    privileged: bool
    read_only_root_filesystem: bool
    run_as_user: int
    seccomp_profile: Profile
    app_armor_profile: Profile


class Resources(Strict):
    requests: dict[Literal["cpu", "memory"], str]
    limits: dict[Literal["cpu", "memory"], str]


class VolumeMount(Strict):
    name: str
    mount_path: str
    read_only: bool = False


class FieldRef(Strict):
    field_path: str


class ValueFrom(Strict):
    field_ref: FieldRef


class Variable(Strict):
    name: str
    value_from: ValueFrom


class Container(Strict):
    name: str
    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    env: tuple[Variable, ...]
    security_context: SecurityContext
    resources: Resources
    volume_mounts: tuple[VolumeMount, ...]


class HostPath(Strict):
    path: str
    type: Literal["Directory", "DirectoryOrCreate"]


class Named(Strict):
    name: str


class Volume(Strict):
    name: str
    host_path: HostPath | None = None
    config_map: Named | None = None


class PodSpec(Strict):
    containers: tuple[Container, ...]
    volumes: tuple[Volume, ...]
    termination_grace_period_seconds: int
    node_selector: dict[str, str]
    host_pid: bool = msgspec.field(name="hostPID")
    automount_service_account_token: bool = True
    enable_service_links: bool = True


class Template(Strict):
    metadata: Metadata
    spec: PodSpec


class Selector(Strict):
    match_labels: dict[str, str]


class Spec(Strict):
    selector: Selector
    template: Template


class DaemonSet(Strict, tag_field="kind", tag="DaemonSet"):
    api_version: Literal["apps/v1"]
    metadata: Metadata
    spec: Spec


Object = Namespace | ConfigMap | DaemonSet


def objects(text: str) -> list[Object]:
    """Raises msgspec.ValidationError for what is no such manifest."""
    return [msgspec.yaml.decode(part, type=Object) for part in text.split("\n---\n")]


def podman_flags(pod: PodSpec) -> list[str]:
    """What gives a container of podman the rights and folders of the pod's, and no more."""
    [container] = pod.containers
    context = container.security_context
    flags = ["--pid=host"] if pod.host_pid else []
    flags += ["--read-only", "--read-only-tmpfs=false"] if context.read_only_root_filesystem else []
    flags += [f"--cap-drop={name}" for name in context.capabilities.drop]
    flags += [f"--cap-add={name}" for name in context.capabilities.add]
    flags += [f"--user={context.run_as_user}", "--cgroupns=private"]
    if context.seccomp_profile.type == "Unconfined":
        flags += ["--security-opt=seccomp=unconfined"]
    flags += [f"--entrypoint={msgspec.json.encode(container.command).decode()}"]
    folders = {volume.name: volume.host_path for volume in pod.volumes}
    for mount in container.volume_mounts:
        if (folder := folders[mount.name]) is not None:
            mode = ":ro" if mount.read_only else ""
            flags.append(f"--volume={folder.path}:{mount.mount_path}{mode}")
    return flags
