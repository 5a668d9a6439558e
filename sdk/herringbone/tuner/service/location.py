"""Keep on disk what this machine knows of a tuning job of SageMaker, so that another process reaches it.

    $HERRINGBONE_HOME/tunings/NAME/service.json

The folder has no tuning.json and no trials: SageMaker has them.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from herringbone.aws.session import AwsLocation
from herringbone.tuner.definition import TuningDefinition
from herringbone_contract.errors import JobNameError
from herringbone_contract.files import sync, write_whole
from herringbone_contract.masking import masked_hyperparameters

_FILE = "service.json"


class ServiceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of service.json: the definition without secrets, and where the tuning job is.

    `created` is in seconds since 1970.
    """

    definition: TuningDefinition
    location: AwsLocation
    created: float


def claim_folder(folder: Path, record: ServiceRecord) -> None:
    """Write the record into a new folder. Raises `JobNameError` where the folder belongs to a tuning job already."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        raise JobNameError(
            f"tuning job name {folder.name!r} is taken on this machine; choose another, or leave it out to get a "
            "generated one"
        ) from None
    definition = msgspec.structs.replace(record.definition, static=masked_hyperparameters(record.definition.static))
    content = msgspec.json.encode(msgspec.structs.replace(record, definition=definition))
    write_whole(folder / _FILE, content, synced=True)
    sync(folder.parent)


def release_folder(folder: Path) -> None:
    """Remove the folder of a tuning job that was never created."""
    with contextlib.suppress(OSError):
        (folder / _FILE).unlink()
        folder.rmdir()


def read_record(folder: Path) -> ServiceRecord | None:
    """Return what `claim_folder` wrote; None where there is none, or one of another release.

    >>> read_record(find_home().tuning("digits")).location.region        # doctest: +SKIP
    'eu-west-1'
    """
    try:
        return msgspec.json.decode((folder / _FILE).read_bytes(), type=ServiceRecord)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
