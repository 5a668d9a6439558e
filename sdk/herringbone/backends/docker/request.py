"""What the engine is asked for one host: the request as a plain object, to print and compare. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from herringbone.backends.docker.image import Image
from herringbone.backends.docker.tree import CACHE, Mount
from herringbone.estimators.options import size_in_bytes
from herringbone.planning.plan import HostPlan, JobPlan
from herringbone_contract.constants import HostVariable

# Inside the job's own network nothing else listens.
CONTROL_PORT = 7590
_HOME = "/tmp"  # noqa: S108 - a tmpfs of the container's own


class ObjectLabel:
    """Labels of what a job makes in the engine: by them a sweep finds what nobody looks after any more."""

    JOB = "dev.herringbone.job"
    HOME = "dev.herringbone.home"
    MACHINE = "dev.herringbone.machine"
    CONTROLLER = "dev.herringbone.controller"


@dataclass(frozen=True, slots=True)
class Meeting:
    """How a job's containers reach each other.

    `mode` is the engine's word for a container's network, `network` the name of one that is to be made, None where none
    is. `control` is where supervisors meet, None for a lone host. `interface` leads to the others.
    """

    mode: str
    control: str | None
    interface: str
    network: str | None = None


def meeting_here(plan: JobPlan) -> Meeting:
    """Return how containers of one engine meet: in a network of their own; a lone host has none to be made."""
    network = network_name(plan)
    return Meeting(
        mode=network or ("none" if is_cut_off(plan) else "default"),
        control=f"tcp:{plan.hosts[0].name}:{CONTROL_PORT}" if network else None,
        interface=network_interface(plan),
        network=network,
    )


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a request needs beside the plan: who asks, from where, and what this machine has.

    `user` is `uid:gid`, `user_name` its name. `shm_bytes` is what /dev/shm may take where the plan says nothing.
    """

    image: Image
    meeting: Meeting
    user: str
    user_name: str
    labels: Mapping[str, str]
    shm_bytes: int
    stop_grace: float
    passed_on: Mapping[str, str]


def container_name(plan: JobPlan, host: HostPlan) -> str:
    return f"{plan.job_name}-{host.name}"


def network_name(plan: JobPlan) -> str | None:
    """Return the name of the network between the hosts; a lone host has none, for making one takes a moment."""
    return f"{plan.job_name}-hosts" if len(plan.hosts) > 1 else None


def network_interface(plan: JobPlan) -> str:
    """Return what a container of this job calls the interface to the other hosts."""
    return "lo" if is_cut_off(plan) else "eth0"


def is_cut_off(plan: JobPlan) -> bool:
    """Whether the job's only host has no network at all."""
    return plan.options.enable_network_isolation and len(plan.hosts) == 1


def network_request(plan: JobPlan, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the request for the network between the hosts of a job; an isolated one leads nowhere else."""
    return {
        "Name": network_name(plan),
        "CheckDuplicate": True,
        "Driver": "bridge",
        "Internal": plan.options.enable_network_isolation,
        "Labels": dict(labels),
    }


def container_request(
    plan: JobPlan, host: HostPlan, around: Surroundings, *, mounts: Sequence[Mount], gpus: Sequence[str]
) -> dict[str, Any]:
    """Return the request for one host's container.

    Nothing in it is secret: the user's environment and the job's key come over standard input, once the container
    runs. A foreign image cannot take them there; its environment is in the request.
    """
    options = plan.options
    meeting = around.meeting
    command = list(options.container_arguments or ())
    request: dict[str, Any] = {
        "Image": around.image.id,
        "Hostname": host.name,
        "User": around.user,
        "Labels": dict(around.labels),
        "Env": [f"{name}={value}" for name, value in _environment(plan, around, mounts).items()],
        "Cmd": command if options.container_entry_point else ["train", *command],
        "AttachStdin": around.image.is_ours,
        "OpenStdin": around.image.is_ours,
        "StdinOnce": around.image.is_ours,
        "AttachStdout": True,
        "AttachStderr": True,
        "HostConfig": {
            "Mounts": [_mount(mount) for mount in mounts],
            "Tmpfs": {"/tmp": "rw,exec,nosuid,nodev,mode=1777"},  # noqa: S108
            "ShmSize": around.shm_bytes if options.shm_size is None else size_in_bytes("shm_size", options.shm_size),
            # The controller files the log; a second copy would be the engine's to keep, and to write.
            "LogConfig": {"Type": "none"},
            "NetworkMode": meeting.mode,
        },
    }
    if options.container_entry_point:
        request["Entrypoint"] = list(options.container_entry_point)
    if gpus:
        request["HostConfig"]["DeviceRequests"] = [{"DeviceIDs": list(gpus), "Capabilities": [["gpu"]]}]
    if meeting.network is not None:
        request["NetworkingConfig"] = {"EndpointsConfig": {meeting.network: {"Aliases": [host.name]}}}
    return request


def _environment(plan: JobPlan, around: Surroundings, mounts: Sequence[Mount]) -> dict[str, str]:
    environment = {HostVariable.JOB_NAME: plan.script_job_name}
    if around.image.is_ours or not around.user.startswith("0:"):
        environment |= {"HOME": _HOME, "USER": around.user_name, "LOGNAME": around.user_name}
    # Else root is at home in the image, and may keep things there: keys for ssh, where that starts its ranks.
    if not around.image.is_ours:
        return {**environment, **plan.environment}
    environment |= {
        HostVariable.PRIVATE: "0",
        HostVariable.STOP_GRACE: f"{around.stop_grace:g}",
        **around.passed_on,
    }
    if any(mount.target == CACHE for mount in mounts):
        environment[HostVariable.CACHE] = CACHE
    if around.meeting.control is not None:
        environment[HostVariable.CONTROL] = around.meeting.control
    return environment


def _mount(mount: Mount) -> dict[str, Any]:
    return {"Type": "bind", "Source": mount.source, "Target": mount.target, "ReadOnly": mount.read_only}
