"""The contract's tree of one container: what lies on our side, and what is mounted where."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from herringbone.backends.host_tree import channels_of, make_folders, place_of, write_config, write_json
from herringbone.code.files import copy_source
from herringbone.estimators.inputs import Channel, share
from herringbone.jobs.home import JobFolder
from herringbone.planning.checks import checkpoint_folder
from herringbone.planning.plan import HostPlan, JobPlan
from herringbone_contract.constants import DEFAULT_BASE, Key
from herringbone_contract.paths import Paths

# A channel of which a host gets a part is mounted whole here, and the part is linked.
WHOLE_CHANNELS = PurePosixPath("/opt/herringbone-data")
INSIDE = Paths(PurePosixPath(DEFAULT_BASE))
SHARED = INSIDE.base / "shared"
# Where the container keeps environments made from requirements.txt.
CACHE = "/opt/herringbone-cache"


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of this machine, at a place in the container."""

    source: str
    target: str
    read_only: bool = False


def fill_host(plan: JobPlan, host: HostPlan, folder: JobFolder, *, interface: str, but_not: Path) -> None:
    """Write all that the host's supervisor will read, and make the folders it will write to."""
    paths = Paths(folder.host(host.name))
    make_folders(paths)
    Path(paths.checkpoints).mkdir()
    if checkpoint_folder(plan) is not None:
        config = {"S3Uri": plan.options.checkpoint_s3_uri, "LocalPath": str(INSIDE.checkpoints)}
        write_json(paths.checkpoint_config, config)
    for channel in channels_of(plan, host):
        _make_place(channel, Path(paths.channel(channel.name)), *place_of(channel, plan, host))
    hyperparameters = dict(plan.hyperparameters)
    if plan.source is not None:
        if plan.source.archive is not None:
            shutil.copy2(plan.source.archive, Path(paths.input) / "sourcedir.tar.gz")
        where = INSIDE.code if plan.source.archive is None else INSIDE.input / "sourcedir.tar.gz"
        hyperparameters[Key.SUBMIT_DIRECTORY] = json.dumps(str(where))
        copy_source(plan.source, Path(paths.code), but_not=but_not)
    write_config(plan, host, paths, hyperparameters=hyperparameters, interface=interface)


def mounts_of(plan: JobPlan, host: HostPlan, folder: JobFolder) -> list[Mount]:
    """Return what the container sees of this job's files; the folders of ours among them are made."""
    folder.shared.mkdir(exist_ok=True)
    mounts = [
        Mount(str(folder.host(host.name)), str(INSIDE.base)),
        Mount(str(folder.shared), str(SHARED)),
    ]
    outliving = checkpoint_folder(plan)
    if outliving is not None:
        outliving.mkdir(parents=True, exist_ok=True)
        mounts.append(Mount(str(outliving), str(INSIDE.checkpoints)))
    found = (_channel_mount(channel, *place_of(channel, plan, host)) for channel in channels_of(plan, host))
    return mounts + [mount for mount in found if mount is not None]


def fetched_of(plan: JobPlan, host: HostPlan, folder: JobFolder) -> dict[str, str]:
    """Return the folders that a container writes to, each with the one here that its content belongs to."""
    here = Paths(folder.host(host.name))
    found = {str(INSIDE.model): str(here.model), str(INSIDE.output): str(here.output), str(SHARED): str(folder.shared)}
    outliving = checkpoint_folder(plan)
    return {**found, str(INSIDE.checkpoints): str(here.checkpoints if outliving is None else outliving)}


def _is_part(channel: Channel, places: int) -> bool:
    return channel.sharded and places > 1 and Path(str(channel.path)).is_dir()


def _channel_mount(channel: Channel, place: int, places: int) -> Mount | None:
    assert channel.path is not None
    inside = INSIDE.channel(channel.name)
    if _is_part(channel, places):
        inside = WHOLE_CHANNELS / channel.name
    elif not Path(channel.path).is_dir():
        if channel.sharded and place > 0:
            return None
        inside /= Path(channel.path).name  # a lone file becomes a folder with that file
    return Mount(channel.path, str(inside), read_only=True)


def _make_place(channel: Channel, into: Path, place: int, places: int) -> None:
    """Make what the channel is mounted on, or link this host's part of it."""
    assert channel.path is not None
    data = Path(channel.path)
    into.mkdir()
    if not data.is_dir():
        if not (channel.sharded and place > 0):
            (into / data.name).touch()
        return
    if not _is_part(channel, places):
        return
    files = sorted(path.relative_to(data) for path in data.rglob("*") if path.is_file())
    for file in share(files, host=place, hosts=places):
        link = into / file
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(WHOLE_CHANNELS / channel.name / file)
