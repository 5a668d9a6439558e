"""The requests to the engine for one host, as plain objects to print and compare. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from herringbone.backends.docker.image import Image
from herringbone.backends.docker.layers import volume_of
from herringbone.backends.docker.tree import CACHE, Mount
from herringbone.engine.restrictions import restrictions
from herringbone.plan.options.typed import size_in_bytes
from herringbone.plan.plan import HostPlan, JobPlan
from herringbone_contract.constants import HostVariable

# The job's own network has no other listener, so the port is always free.
CONTROL_PORT = 7590
_HOME = "/tmp"  # noqa: S108 - each container has a tmpfs of its own there


class ObjectLabel:
    """Labels of what a job creates in the engine; garbage collection finds objects without a controller by them."""

    JOB = "dev.herringbone.job"
    HOME = "dev.herringbone.home"
    MACHINE = "dev.herringbone.machine"
    CONTROLLER = "dev.herringbone.controller"
    # Where the controller's pid means something. Absent in objects of earlier releases.
    PLACE = "dev.herringbone.place"
    # The ids of the container's GPUs, separated by commas.
    GPUS = "dev.herringbone.gpus"


@dataclass(frozen=True, slots=True)
class HostNetwork:
    """The network of one host's container.

    `mode` is the engine's `NetworkMode`. `network` is the name of the network to create, None for an existing one.
    `control` is the address of the rendezvous, None for a single host. `interface` leads to the other hosts.
    """

    mode: str
    control: str | None
    interface: str
    network: str | None = None


def engine_network(plan: JobPlan) -> HostNetwork:
    """Return the network of one engine's containers: several hosts get a new network, a single one does not."""
    network = network_name(plan)
    return HostNetwork(
        mode=network or ("none" if is_cut_off(plan) else "default"),
        control=f"tcp:{plan.hosts[0].name}:{CONTROL_PORT}" if network else None,
        interface=network_interface(plan),
        network=network,
    )


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Values of a request that are not in the plan: the image, the network, the user and this machine's memory.

    `user` is `uid:gid`, `user_name` its name, `groups` are other groups by which the user reads and writes files.
    `shm_bytes` is the size of /dev/shm unless the plan has one. `passed_on` are settings of the supervisor.
    """

    image: Image
    network: HostNetwork
    user: str
    user_name: str
    labels: Mapping[str, str]
    shm_bytes: int
    stop_grace: float
    passed_on: Mapping[str, str]
    groups: Sequence[int] = ()


def container_name(plan: JobPlan, host: HostPlan) -> str:
    return f"{plan.job_name}-{host.name}"


def network_name(plan: JobPlan) -> str | None:
    """Return the name of the network between the hosts; None for a single host, which needs none."""
    return f"{plan.job_name}-hosts" if len(plan.hosts) > 1 else None


def network_interface(plan: JobPlan) -> str:
    """Return the name, inside a container of this job, of the interface to the other hosts."""
    return "lo" if is_cut_off(plan) else "eth0"


def is_cut_off(plan: JobPlan) -> bool:
    """Report whether the job's only host has no network at all."""
    return plan.options.enable_network_isolation and len(plan.hosts) == 1


def network_request(plan: JobPlan, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the request for the network between the hosts of a job; an isolated one has no way out."""
    return {
        "Name": network_name(plan),
        "CheckDuplicate": True,
        "Driver": "bridge",
        "Internal": plan.options.enable_network_isolation,
        "Labels": dict(labels),
    }


def container_request(
    plan: JobPlan, host: HostPlan, context: RequestContext, *, mounts: Sequence[Mount], gpus: Sequence[str]
) -> dict[str, Any]:
    """Return the request for one host's container.

    The request contains no secret: the user's environment and the job's key arrive over standard input once the
    container runs. A foreign image does not read them there, so its environment is in the request.
    """
    options = plan.options
    network = context.network
    command = list(options.container_arguments or ())
    request: dict[str, Any] = {
        "Image": context.image.id,
        "Hostname": host.name,
        "User": context.user,
        "Labels": dict(context.labels),
        "Env": [f"{name}={value}" for name, value in _environment(plan, context, mounts).items()],
        "Cmd": command if options.container_entry_point else ["train", *command],
        "AttachStdin": context.image.is_ours,
        "OpenStdin": context.image.is_ours,
        # The engine closes standard input when the attached client, the controller, goes away: the lifeline.
        "StdinOnce": context.image.is_ours,
        "AttachStdout": True,
        "AttachStderr": True,
        "HostConfig": {
            "Mounts": [_mount(mount) for mount in mounts],
            # The container's user may write neither to the image's folders nor to a home of its own.
            "Tmpfs": {"/tmp": "rw,exec,nosuid,nodev,mode=1777"},  # noqa: S108
            "ShmSize": context.shm_bytes if options.shm_size is None else size_in_bytes("shm_size", options.shm_size),
            # The controller writes the log; the engine must not write a second copy to its disk.
            "LogConfig": {"Type": "none"},
            "NetworkMode": network.mode,
            **({"GroupAdd": [str(group) for group in context.groups]} if context.groups else {}),
            **restrictions(context.user),
        },
    }
    if options.container_entry_point:
        request["Entrypoint"] = list(options.container_entry_point)
    if gpus:
        request["Labels"][ObjectLabel.GPUS] = ",".join(gpus)
        request["HostConfig"]["DeviceRequests"] = [{"DeviceIDs": list(gpus), "Capabilities": [["gpu"]]}]
    if network.network is not None:
        request["NetworkingConfig"] = {"EndpointsConfig": {network.network: {"Aliases": [host.name]}}}
    return request


def _environment(plan: JobPlan, context: RequestContext, mounts: Sequence[Mount]) -> dict[str, str]:
    environment = {HostVariable.JOB_NAME: plan.script_job_name}
    if context.image.is_ours or not context.user.startswith("0:"):
        environment |= {"HOME": _HOME, "USER": context.user_name, "LOGNAME": context.user_name}
    # Root in a foreign image keeps its home: the image may have ssh keys there, with which it starts its ranks.
    if not context.image.is_ours:
        return {**environment, **plan.environment}
    environment |= {
        HostVariable.PRIVATE: "0",
        HostVariable.STOP_GRACE: f"{context.stop_grace:g}",
        **context.passed_on,
    }
    for mount in mounts:
        if mount.target == CACHE:
            environment |= {HostVariable.CACHE: CACHE, HostVariable.CACHE_OUTSIDE: mount.source}
    if context.network.control is not None:
        environment[HostVariable.CONTROL] = context.network.control
    return environment


def _mount(mount: Mount) -> dict[str, Any]:
    if mount.layer is not None:
        return volume_of(mount)
    return {"Type": "bind", "Source": mount.source, "Target": mount.target, "ReadOnly": mount.read_only}
