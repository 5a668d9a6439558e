"""What `fit(inputs)` takes: channels of data, as SageMaker spells them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec

from herringbone_spec.errors import InputError

DEFAULT_CHANNEL = "training"
_CHANNEL_NAME = re.compile(r"[A-Za-z0-9.\-_]{1,64}")
_Item = TypeVar("_Item")


class ShuffleConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The seed by which a service shuffles the objects of a channel."""

    seed: int


class TrainingInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One channel: where the data is, and how hosts share it.

    >>> TrainingInput("file:///data/train", distribution="ShardedByS3Key").s3_data
    'file:///data/train'

    `s3_data` is a folder or a file (`file://` or a plain path, relative to the current folder) or an `s3://` address.
    Names, order and defaults are those of `sagemaker.inputs.TrainingInput`. Types are checked when `fit` or `plan`
    takes it.
    """

    s3_data: str
    distribution: Literal["FullyReplicated", "ShardedByS3Key"] | None = None
    compression: Literal["None", "Gzip"] | None = None
    content_type: str | None = None
    record_wrapping: Literal["None", "RecordIO"] | None = None
    s3_data_type: Literal["S3Prefix", "ManifestFile", "AugmentedManifestFile"] = "S3Prefix"
    instance_groups: tuple[str, ...] | None = None
    input_mode: Literal["File", "Pipe", "FastFile"] | None = None
    attribute_names: tuple[str, ...] | None = None
    target_attribute_name: str | None = None
    shuffle_config: ShuffleConfig | None = None


Source: TypeAlias = "str | os.PathLike[str] | TrainingInput"
Inputs: TypeAlias = "Source | Mapping[str, Source] | None"


class Channel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A named input. `path` is the local folder or file, absolute; None when the data is not on this machine."""

    name: str
    input: TrainingInput
    path: str | None = None

    @property
    def sharded(self) -> bool:
        return self.input.distribution == "ShardedByS3Key"


def parse_inputs(inputs: Inputs, *, base: Path) -> tuple[Channel, ...]:
    """Turn what `fit` was given into channels, in the order of their names.

    >>> [channel.path for channel in parse_inputs("data", base=Path("/home/me"))]
    ['/home/me/data']

    Relative paths count from `base`. Nothing is read. Raises `InputError`.
    """
    if inputs is None:
        return ()
    if not isinstance(inputs, Mapping):
        inputs = {DEFAULT_CHANNEL: inputs}
    return tuple(_channel(name, source, base) for name, source in sorted(inputs.items()))


def _channel(name: str, source: Source, base: Path) -> Channel:
    if not isinstance(name, str) or not _CHANNEL_NAME.fullmatch(name):
        raise InputError(f"channel {name!r}: a name has 1 to 64 letters, digits, '.', '-' or '_'")
    if isinstance(source, (str, os.PathLike)):
        source = TrainingInput(os.fspath(source))
    if not isinstance(source, TrainingInput):
        raise InputError(
            f"channel {name!r}: expected a path, an address or a TrainingInput, got {type(source).__name__}"
        )
    try:
        checked = msgspec.convert(msgspec.to_builtins(source), TrainingInput)
    except msgspec.ValidationError as error:
        raise InputError(f"channel {name!r}: TrainingInput: {str(error).replace('`', '')}") from None
    path = local_path(checked.s3_data, base=base)
    return Channel(name=name, input=checked, path=None if path is None else str(path))


def local_path(address: str, *, base: Path) -> Path | None:
    """Return where a plain path or a `file://` address points, or None for another scheme.

    >>> local_path("file://data/train", base=Path("/home/me")), local_path("s3://bucket/x", base=Path("/"))
    (PosixPath('/home/me/data/train'), None)

    As in AWS's local mode, `file://data` is relative: what follows the slashes is the path.
    """
    scheme = urlsplit(address).scheme if "://" in address else ""
    if scheme not in ("", "file"):
        return None
    path = Path(unquote(address[len("file://") :])) if scheme else Path(address)
    return Path(os.path.abspath(base / path.expanduser()))  # noqa: PTH100 - Path.resolve would follow links


def share(files: Sequence[_Item], *, host: int, hosts: int) -> list[_Item]:
    """Return the files of one host under `ShardedByS3Key`: every `hosts`-th of the sorted list.

    >>> share(["a", "b", "c"], host=0, hosts=2), share(["a", "b", "c"], host=1, hosts=2)
    (['a', 'c'], ['b'])
    """
    return list(files[host::hosts])
