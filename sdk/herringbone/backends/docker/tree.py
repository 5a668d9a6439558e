"""The contract's tree of one container: the files on this machine, and their mounts in the container."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from herringbone.backends.review.checks import checkpoint_folder, tensorboard_folder
from herringbone.code.files import copy_source
from herringbone.plan.channels import is_piped
from herringbone.plan.host_tree import channels_of, make_fifo, make_folders, position_of, write_config, write_json
from herringbone.plan.inputs import Channel, share
from herringbone.plan.plan import HostPlan, JobPlan
from herringbone.records.home import JobFolder
from herringbone_contract.constants import DEFAULT_BASE
from herringbone_contract.hyperparameters import bare_values, with_code_at
from herringbone_contract.paths import Paths

# A sharded channel is mounted here as a whole, and the tree has links to the host's share of its files.
WHOLE_CHANNELS = PurePosixPath("/opt/herringbone-data")
INSIDE = Paths(PurePosixPath(DEFAULT_BASE))
SHARED = INSIDE.base / "shared"
# The container stores environments made from requirements.txt here.
CACHE = "/opt/herringbone-cache"


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of this machine, and its path in the container.

    `layer` is a folder for what the container changes: it sees `source` with its changes, and `source` stays as it is.
    """

    source: str
    target: str
    read_only: bool = False
    layer: str | None = None


def fill_host(plan: JobPlan, host: HostPlan, folder: JobFolder, *, interface: str, exclude: Path) -> None:
    """Write everything that the host's supervisor will read, and create the folders that it will write to."""
    paths = Paths(folder.host(host.name))
    make_folders(paths)
    Path(paths.checkpoints).mkdir()
    if checkpoint_folder(plan) is not None:
        config = {"S3Uri": plan.options.checkpoint_s3_uri, "LocalPath": str(INSIDE.checkpoints)}
        write_json(paths.checkpoint_config, config)
    if tensorboard_folder(plan) is not None:
        Path(paths.tensorboard).mkdir()
    for channel in channels_of(plan, host):
        if is_piped(channel, plan):
            # In the tree itself, which the container has at /opt/ml: both sides have the same kernel.
            make_fifo(channel, paths)
        else:
            _make_mount_point(channel, Path(paths.channel(channel.name)), *position_of(channel, plan, host))
    hyperparameters = dict(plan.hyperparameters)
    if plan.source is None:
        hyperparameters = bare_values(hyperparameters)
    else:
        if plan.source.archive is not None:
            shutil.copy2(plan.source.archive, Path(paths.input) / "sourcedir.tar.gz")
        submit_directory = INSIDE.code if plan.source.archive is None else INSIDE.input / "sourcedir.tar.gz"
        hyperparameters = with_code_at(hyperparameters, str(submit_directory))
        copy_source(plan.source, Path(paths.code), exclude=exclude)
    write_config(plan, host, paths, hyperparameters=hyperparameters, interface=interface)


def mounts_of(plan: JobPlan, host: HostPlan, folder: JobFolder) -> list[Mount]:
    """Return the mounts of one container, and create those of their folders that belong to the job."""
    folder.shared.mkdir(exist_ok=True)
    tree = Paths(folder.host(host.name))
    if plan.source is None:
        # An image's own program may be in /opt/ml/code, as AWS's toolkit has it, which a mount over it would hide.
        parts = ("input", "model", "output", "checkpoints")
        places = {getattr(INSIDE, part): getattr(tree, part) for part in parts}
    else:
        places = {INSIDE.base: tree.base}
    places[SHARED] = folder.shared
    # In place of the tree's own folders, or over them: what is in these outlives the job.
    checkpoints = checkpoint_folder(plan) or (folder.checkpoints(plan.hosts[0].name) if len(plan.hosts) > 1 else None)
    kept = {INSIDE.checkpoints: checkpoints, INSIDE.tensorboard: tensorboard_folder(plan, host)}
    for inside, outside in kept.items():
        if outside is not None:
            outside.mkdir(parents=True, exist_ok=True)
            places[inside] = outside
    mounts = [Mount(str(outside), str(inside)) for inside, outside in places.items()]
    for channel in channels_of(plan, host):
        if is_piped(channel, plan):
            continue
        mount = _channel_mount(channel, *position_of(channel, plan, host))
        if mount is None:
            continue
        # Files of the other modes are read-only at SageMaker, too.
        if (channel.input.input_mode or plan.options.input_mode) == "File" and Path(mount.source).is_dir():
            mount = replace(mount, layer=str(folder.layers(host.name) / channel.name))
        mounts.append(mount)
    return mounts


def fetched_of(plan: JobPlan, host: HostPlan, folder: JobFolder) -> dict[str, str]:
    """Return the folders that a container writes to, each with the folder of this machine to copy it to."""
    paths = Paths(folder.host(host.name))
    checkpoints, tensorboard = checkpoint_folder(plan), tensorboard_folder(plan, host)
    return {
        str(INSIDE.model): str(paths.model),
        str(INSIDE.output): str(paths.output),
        str(SHARED): str(folder.shared),
        str(INSIDE.checkpoints): str(paths.checkpoints if checkpoints is None else checkpoints),
        **({} if tensorboard is None else {str(INSIDE.tensorboard): str(tensorboard)}),
    }


def _is_part(channel: Channel, hosts: int) -> bool:
    """Report whether each host gets a part of the channel."""
    return channel.is_split and hosts > 1 and Path(str(channel.path)).is_dir()


def _channel_mount(channel: Channel, position: int, hosts: int) -> Mount | None:
    assert channel.path is not None
    inside = INSIDE.channel(channel.name)
    if _is_part(channel, hosts):
        inside = WHOLE_CHANNELS / channel.name
    elif not Path(channel.path).is_dir():
        if channel.is_split and position > 0:
            return None
        # A channel is always a folder in the container, also for a single file.
        inside /= Path(channel.path).name
    return Mount(channel.path, str(inside), read_only=True)


def _make_mount_point(channel: Channel, into: Path, position: int, hosts: int) -> None:
    """Create the folder or file on which the channel is mounted, or links to this host's part of it."""
    assert channel.path is not None
    data = Path(channel.path)
    # The engine creates missing mount points itself, owned by root.
    into.mkdir()
    if not data.is_dir():
        if not (channel.is_split and position > 0):
            (into / data.name).touch()
        return
    if not _is_part(channel, hosts):
        return
    files = sorted(path.relative_to(data) for path in data.rglob("*") if path.is_file())
    for file in share(files, host=position, hosts=hosts):
        link = into / file
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(WHOLE_CHANNELS / channel.name / file)
