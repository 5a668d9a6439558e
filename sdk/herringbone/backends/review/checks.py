"""Review a plan for a backend that runs on the user's own machines: options, launchers, channels and output.

These checks look at names and permissions and change nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from herringbone.aws.location import is_s3
from herringbone.backends.review.disk import low_disk_warnings
from herringbone.backends.review.links import link_warnings
from herringbone.backends.review.settings import unserved_answers, unserved_settings
from herringbone.code.files import check_source, measure_code
from herringbone.plan.channels import check_shares, is_augmented, is_piped, refused_channels
from herringbone.plan.frameworks import script_framework, unused_versions
from herringbone.plan.inputs import Channel, local_path
from herringbone.plan.options.members import FIELDS
from herringbone.plan.options.names import HUGGING_FACE_VERSIONS
from herringbone.plan.options.typed import changed_options
from herringbone.plan.plan import HostPlan, JobPlan, refuse
from herringbone.plan.s3 import uses_s3
from herringbone.plan.shown import OWN_HOSTS, RESIZED
from herringbone.plan.texts import check_path
from herringbone.records.home import JobFolder, find_home
from herringbone.s3.pipes.records import parse_lines
from herringbone.system.near import alternatives
from herringbone_contract.errors import InputError, OptionError, UnsupportedError
from herringbone_contract.faults.policies import RETRIES
from herringbone_contract.served import Library

if TYPE_CHECKING:
    from herringbone.protocols.backend import Backend

# Each host is a process of Python or a container, with a supervisor that sends heartbeats.
_MIN_HOSTS_OF_A_MACHINE, _HOSTS_OF_A_CORE, _RANKS_OF_A_CORE = 64, 16, 64
# Options that cost money, choose machines or name accounts: without them a job on this machine runs just the same.
UNUSED = (
    *(name for name, member in FIELDS.items() if member.alone),
    *(
        "sagemaker_session",
        "max_wait",
        "priority",
        "retry_without_client",
        "extra_request",
        "slurm",
        "kubernetes",
    ),
)

# Backends on whose machines jobs wait in line, and the options that have an effect on a job that does.
WITH_LINES = ("local_process", "local", "ssh")
OF_LINES = ("max_wait", "priority")

# Options that a user relies on: without them the job would be another job, or a less safe one.
NO_MEMORY = {"checkpoint_memory": "its hosts keep no checkpoints in memory, only those of local_process do"}
REFUSED = {
    "volume_kms_key": "the job's folder is not encrypted",
    "output_kms_key": "the model is not encrypted",
}


def reviewed(plan: JobPlan, backend: Backend) -> JobPlan:
    """Return a plan that its backend accepts, with what backend, disks and code say about it. Raises `UsageError`."""
    check_trackers(plan)
    plan = backend.completed(plan)
    # Arguments are evaluated in order: `review` refuses a plan before a request is made of it.
    return msgspec.structs.replace(
        plan,
        unused=backend.review(plan),
        request=backend.request(plan),
        warnings=(*plan.warnings, *disk_warnings(plan), *s3_notes(plan), *link_warnings(plan)),
        code=None if plan.source is None else measure_code(plan.source, exclude=find_home().path),
    )


def s3_notes(plan: JobPlan) -> tuple[str, ...]:
    """Check the job's addresses in S3, and return notes about them. Raises `UsageError` or `AwsError`."""
    if plan.backend not in OWN_HOSTS:
        return ()
    if (location := plan.options.code_location) is not None and not is_s3(location):
        raise OptionError(f"code_location: {location}: give an s3:// address, or leave it out")
    if not uses_s3(plan):
        return ()
    # Imported here: most jobs have none.
    from herringbone.s3.review import check_addresses

    return check_addresses(plan, dict(os.environ))


def check_served(backend: str, plan: JobPlan, refused: dict[str, str], *, retries: int = 0) -> None:
    """Raise one `UnsupportedError` that names every option the backend does not serve.

    `refused` maps options to the reason why this backend refuses them. `retries` is the number of restarts that this
    backend allows a job without `max_retry_attempts`.
    """
    options = changed_options(plan.options)
    refusals = {name: reason for name, reason in {**REFUSED, **refused}.items() if options.get(name)}
    if not (plan.options.max_retry_attempts or retries):
        reason = "controls how a job restarts, and this job never restarts: give max_retry_attempts, too"
        resized = () if backend in RESIZED else ("min_instance_count",)
        restarting = ("log_policies", *resized, "retry_without_client", "checkpoint_memory")
        refusals |= {name: reason for name in restarting if options.get(name, False) is not False}
        answers = plan.options.fault_policies.items()
        if kinds := [kind for kind, answer in answers if answer in RETRIES]:
            refusals["fault_policies"] = f"{reason}, or another answer to {', '.join(kinds)}"
    refuse(backend, unserved_answers(plan) | refusals | _refused_values(plan) | _fixed(plan))


def check_hosts(backend: str, plan: JobPlan) -> None:
    """Refuse more hosts and ranks than `stop` can end in time, and than leave a machine to its users."""
    cores = os.cpu_count() or 1
    ranks = sum(max(1, host.ranks or 0) for host in plan.hosts)
    most, most_ranks = max(_MIN_HOSTS_OF_A_MACHINE, _HOSTS_OF_A_CORE * cores), _RANKS_OF_A_CORE * cores
    if len(plan.hosts) > most or ranks > most_ranks:
        raise UnsupportedError(
            f"instance_count: {len(plan.hosts)} hosts with {ranks} ranks on this machine, and {backend} starts {most} "
            f"hosts and {most_ranks} ranks at most on its {cores} cores; give fewer, or other machines (ssh:, slurm:)"
        )


def check_files(backend: str, plan: JobPlan) -> None:
    """Check that code, data and folders exist. Raises `InputError`, `ArchiveError` or `UnsupportedError`."""
    if plan.source is not None and not plan.source.remote:
        check_source(plan.source, exclude=find_home().path)
    for channel in plan.channels:
        _check_channel(backend, channel)
        if channel.path is not None:
            path = Path(channel.path)
            files = (each for each in path.rglob("*") if each.is_file()) if path.is_dir() else iter([path])
            check_shares(channel, plan, _check_augmented(channel, path) if is_augmented(channel) else files)
    # Called for their checks alone: both raise for an address of another machine and for a file.
    output_folder(plan, JobFolder(Path(plan.folder)))
    checkpoint_folder(plan)
    tensorboard_folder(plan)


def check_trackers(plan: JobPlan) -> None:
    """Check that what the job's trackers and notices need is here. Raises `OptionError`."""
    if plan.options.track:
        # Imported here: most jobs have none.
        from herringbone.backends.review.trackers import check_installed
        from herringbone.plan.destinations import parse_destinations

        check_installed(parse_destinations(plan.options.track, base=Path(plan.folder)))
    if plan.options.notify:
        from herringbone.backends.review.trackers import check_notices

        check_notices(plan.options.notify, Path(plan.folder))


def disk_warnings(plan: JobPlan) -> tuple[str, ...]:
    """Return a warning for each disk of this machine that the job will write to and that has little room."""
    if plan.backend not in OWN_HOSTS:
        return ()
    output = None if plan.options.output_path is None else output_folder(plan, JobFolder(Path(plan.folder)))
    free: dict[int, tuple[str, int]] = {}
    for folder in (find_home().path, output, checkpoint_folder(plan), tensorboard_folder(plan)):
        # Most of them are made when the job starts. One warning for each disk is enough.
        existing = next((path for path in (folder, *folder.parents) if os.path.exists(path)), None) if folder else None  # noqa: PTH110
        if existing is not None:
            disk = os.statvfs(existing)
            free.setdefault(existing.stat().st_dev, (str(folder), disk.f_bavail * disk.f_frsize))
    return low_disk_warnings(dict(free.values()))


def unused_of(plan: JobPlan, unused: Sequence[str], *, used: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the options that the user set and that have no effect, sorted: those of `UNUSED` and of `unused`.

    `used` are those of `UNUSED` that have an effect on this backend; with `image_uri` in `unused`, that counts, too.
    """
    options = changed_options(plan.options)
    # `changed_options` leaves the session out, because it is no plain value.
    session = ["sagemaker_session"] if plan.options.sagemaker_session is not None and not uses_s3(plan) else []
    used = (*used, *(OF_LINES if plan.queue and plan.backend in WITH_LINES else ()))
    image = ["image_uri"] if plan.arguments.image_uri and "image_uri" in unused else []
    # Where a version chooses an image of ours, it is the version of the first one.
    versions = unused_versions(plan, () if "framework_version" in unused else HUGGING_FACE_VERSIONS[:1])
    names = [name for name in (*UNUSED, *unused) if name in options and name not in used]
    return tuple(sorted([*names, *session, *versions, *image]))


def brings_packages(plan: JobPlan) -> bool:
    """Return True if ranks may run in a Python that is made for the job from its requirements.txt."""
    source = plan.source
    assert source is not None
    if source.folder is None:
        return True  # only the host unpacks an archive, so it may hold a requirements.txt
    return source.whole_folder and Path(source.folder, "requirements.txt").exists()


def output_folder(plan: JobPlan, folder: JobFolder) -> Path:
    """Return the folder for the packed model: `<output_path>/<job>/output`, or the job folder's `output`."""
    if plan.options.output_path is None or is_s3(plan.options.output_path):
        # Packed results are sent from there.
        return folder.output
    return _on_this_machine("output_path", plan.options.output_path, plan) / plan.job_name / "output"


def checkpoint_folder(plan: JobPlan) -> Path | None:
    """Return the folder that keeps the checkpoints after the job, None without `checkpoint_s3_uri`.

    For an address in S3, return the folder of the job that is kept in step with it.
    """
    uri = plan.options.checkpoint_s3_uri
    if is_s3(uri):
        return find_home().job(plan.job_name).s3_checkpoints
    return None if uri is None else _on_this_machine("checkpoint_s3_uri", uri, plan)


def tensorboard_folder(plan: JobPlan, host: HostPlan | None = None) -> Path | None:
    """Return the folder that keeps TensorBoard's event files after the job, None without one.

    With `host`, return that host's: of several hosts each has a folder in it, because each reads what is in its own.
    """
    config = plan.options.tensorboard_output_config
    if config is None:
        return None
    folder = _on_this_machine("tensorboard_output_config", config.s3_output_path, plan)
    return folder if host is None or len(plan.hosts) == 1 else folder / host.name


def _refused_values(plan: JobPlan) -> dict[str, str]:
    """Return the refusals for options that are served, but not with these values."""
    refusals = unserved_settings(plan, Library.HERRINGBONE)
    if any(host.ranks == 0 and not host.helper for host in plan.hosts):
        refusals["distribution.instance_groups"] = "a group that neither trains nor helps does not run here yet"
    local = plan.options.checkpoint_local_path
    if local is not None and local.rstrip("/") != "/opt/ml/checkpoints":
        refusals["checkpoint_local_path"] = f"only /opt/ml/checkpoints is served here, not {local}"
    config = plan.options.tensorboard_output_config
    written = None if config is None else config.container_local_output_path
    if written is not None and written.rstrip("/") != "/opt/ml/output/tensorboard":
        refusals["tensorboard_output_config"] = (
            f"container_local_output_path is served as /opt/ml/output/tensorboard only here, not as {written}"
        )
    return refusals | refused_channels(plan)


def _fixed(plan: JobPlan) -> dict[str, str]:
    """Return the refusal for a job whose data, or whose batches, are for its own number of hosts."""
    if plan.options.keep_global_batch and (framework := script_framework(plan)) not in (None, "pytorch"):
        return {"keep_global_batch": f"loops of PyTorch with `Training` keep it, not {framework}; leave it out"}
    if plan.backend not in RESIZED or not plan.fewer_hosts:
        return {}
    for channel in plan.channels:
        if is_piped(channel, plan) or channel.is_split:
            how = "is read from FIFOs" if is_piped(channel, plan) else "is divided among the hosts"
            return {"min_instance_count": f"channel {channel.name!r} {how}, so the job keeps its hosts; leave it out"}
    return {}


def _check_channel(backend: str, channel: Channel) -> None:
    if is_s3(channel.input.s3_data):
        return  # `s3.review` looks at those
    if channel.path is None:
        raise UnsupportedError(
            f"channel {channel.name!r}: {channel.input.s3_data} is not on this machine, and {backend} fetches no such "
            "address: copy the data here and give its path"
        )
    if not os.path.exists(channel.path):  # noqa: PTH110 - a str is what the plan carries
        _, separator, name = channel.input.s3_data.partition("://")
        hints = alternatives(Path(channel.path)) + (_ESCAPES if separator and "%" in name else "")
        raise InputError(f"channel {channel.name!r}: {channel.path}: no such file or folder{hints}")
    if not os.access(channel.path, os.R_OK):
        raise InputError(f"channel {channel.name!r}: {channel.path}: no permission to read it")


# Hive writes such names: `ts=00%3A00`.
_ESCAPES = ". In a file:// address %3A stands for a colon, and %25 for a %: give the plain path, or escape each % of it"


def _check_augmented(channel: Channel, path: Path) -> list[dict[str, Any]]:
    """Return the lines of an AugmentedManifestFile of this machine. Raises `InputError` for one that cannot be used."""
    if not path.is_file():
        raise InputError(f"channel {channel.name!r}: {path} is a folder, and an AugmentedManifestFile is one file")
    return parse_lines(path.read_bytes(), channel.input.attribute_names or (), str(path))


def _on_this_machine(option: str, address: str, plan: JobPlan) -> Path:
    path = local_path(address, base=Path(plan.folder))
    if path is None:
        raise UnsupportedError(f"{option}: {address} is not on this machine; give a folder or a file:// address")
    check_path(option, str(path))
    if path.exists() and not path.is_dir():
        raise InputError(f"{option}: {path} is no folder")
    return path
