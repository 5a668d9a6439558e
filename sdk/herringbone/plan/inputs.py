"""The inputs of `fit`: channels of data, with SageMaker's names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, TypeVar
from urllib.parse import quote, unquote

import msgspec

from herringbone.aws.fields import NONE_IS_UNSET, Conversions, Member
from herringbone.plan.option_errors import explain
from herringbone.plan.texts import check_path, check_texts
from herringbone.system.user_paths import expanded
from herringbone_contract.errors import InputError

DEFAULT_CHANNEL = "training"
_S3, _FILE_SYSTEM = "DataSource.S3DataSource", "DataSource.FileSystemDataSource"
_CHANNEL_NAME = re.compile(r"[A-Za-z0-9.\-_]{1,64}")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_Item = TypeVar("_Item")
_Input = TypeVar("_Input", "TrainingInput", "FileSystemInput")


class ShuffleConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The seed with which a service shuffles the objects of a channel."""

    seed: int


_SHUFFLE: Conversions = {
    "to": lambda config: {"Seed": config["seed"]},
    "back": lambda member: ShuffleConfig(member["Seed"]),
}


class TrainingInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One channel: the address of the data, and how hosts share it.

    >>> TrainingInput("file:///data/train", distribution="ShardedByS3Key").s3_data
    'file:///data/train'

    `s3_data` is a folder or a file (`file://` or a plain path, relative to the current folder) or an `s3://` address.
    Names, order and defaults are those of `sagemaker.inputs.TrainingInput`. `fit` and `plan` check the types.
    """

    s3_data: Annotated[str, Member(f"{_S3}.S3Uri")]
    distribution: Annotated[
        Literal["FullyReplicated", "ShardedByS3Key"] | None, Member(f"{_S3}.S3DataDistributionType")
    ] = None
    compression: Annotated[Literal["None", "Gzip"] | None, Member("CompressionType", **NONE_IS_UNSET)] = None
    content_type: Annotated[str | None, Member("ContentType")] = None
    record_wrapping: Annotated[Literal["None", "RecordIO"] | None, Member("RecordWrapperType", **NONE_IS_UNSET)] = None
    s3_data_type: Annotated[
        Literal["S3Prefix", "ManifestFile", "AugmentedManifestFile"], Member(f"{_S3}.S3DataType")
    ] = "S3Prefix"
    instance_groups: Annotated[tuple[str, ...] | None, Member(f"{_S3}.InstanceGroupNames")] = None
    input_mode: Annotated[Literal["File", "Pipe", "FastFile"] | None, Member("InputMode")] = None
    attribute_names: Annotated[tuple[str, ...] | None, Member(f"{_S3}.AttributeNames")] = None
    target_attribute_name: str | None = None
    shuffle_config: Annotated[ShuffleConfig | None, Member("ShuffleConfig", **_SHUFFLE)] = None


class FileSystemInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One channel: a folder of an EFS or FSx for Lustre file system, which SageMaker mounts; on own hosts that folder.

    >>> FileSystemInput("fs-0123456789abcdef0", "FSxLustre", "/fsx/train").address
    'fsxlustre://fs-0123456789abcdef0/fsx/train'

    Names, order and defaults are those of `sagemaker.inputs.FileSystemInput`. At SageMaker the job needs `subnets` and
    `security_group_ids` from which the file system is reachable. On own hosts `directory_path` is where it is mounted.
    """

    file_system_id: Annotated[str, Member(f"{_FILE_SYSTEM}.FileSystemId")]
    file_system_type: Annotated[Literal["EFS", "FSxLustre"], Member(f"{_FILE_SYSTEM}.FileSystemType")]
    directory_path: Annotated[str, Member(f"{_FILE_SYSTEM}.DirectoryPath")]
    file_system_access_mode: Annotated[Literal["ro", "rw"], Member(f"{_FILE_SYSTEM}.FileSystemAccessMode")] = "ro"
    content_type: Annotated[str | None, Member("ContentType")] = None

    @property
    def address(self) -> str:
        """The name of the folder in messages and plans."""
        return f"{self.file_system_type.lower()}://{self.file_system_id}/{self.directory_path.lstrip('/')}"


Source: TypeAlias = "str | os.PathLike[str] | TrainingInput | FileSystemInput"
Inputs: TypeAlias = "Source | Mapping[str, Source] | None"


class Channel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A named input. `path` is the local folder or file, absolute; None when the data is not on this machine.

    For a folder of a file system, `input` holds its address and nothing else. `is_share`: `path` has the files of one
    host already, which a client has sent to its machine.
    """

    name: str
    input: TrainingInput
    path: str | None = None
    file_system: FileSystemInput | None = None
    is_share: bool = False

    @property
    def sharded(self) -> bool:
        return self.input.distribution == "ShardedByS3Key"

    @property
    def is_split(self) -> bool:
        """True if a host has to take its share of the files at `path`."""
        return self.sharded and not self.is_share


def parse_inputs(inputs: Inputs, *, base: Path) -> tuple[Channel, ...]:
    """Convert the argument `inputs` of `fit` to channels, sorted by name.

    >>> [channel.path for channel in parse_inputs("data", base=Path("/home/me"))]
    ['/home/me/data']

    Relative paths count from `base`. This function reads no file. Raises `InputError`.
    """
    if inputs is None:
        return ()
    if not isinstance(inputs, Mapping):
        inputs = {DEFAULT_CHANNEL: inputs}
    for name in inputs:
        if not is_channel_name(name):
            raise InputError(f"channel {name!r}: a name has 1 to 64 letters, digits, '.', '-' or '_'")
    return tuple(_channel(name, source, base) for name, source in sorted(inputs.items()))


def is_channel_name(name: object) -> bool:
    """Return whether SageMaker accepts a name for a channel.

    >>> is_channel_name("training"), is_channel_name("a/b")
    (True, False)
    """
    # A channel is a folder: two names lead elsewhere.
    return isinstance(name, str) and _CHANNEL_NAME.fullmatch(name) is not None and name not in (".", "..")


def _channel(name: str, source: Source, base: Path) -> Channel:
    if isinstance(source, (str, os.PathLike)):
        source = TrainingInput(os.fspath(source))
    if isinstance(source, FileSystemInput):
        folder = _checked(name, source)
        return Channel(
            name=name, input=TrainingInput(folder.address, content_type=folder.content_type), file_system=folder
        )
    if not isinstance(source, TrainingInput):
        raise InputError(
            f"channel {name!r}: expected a path, an address, a TrainingInput or a FileSystemInput, got "
            f"{type(source).__name__}"
        )
    checked = _checked(name, source)
    if not checked.s3_data:
        raise InputError(f"channel {name!r}: the path is empty; give a path or an address")
    path = local_path(checked.s3_data, base=base)
    if path is not None:
        check_path(f"channel {name!r}", str(path), error=InputError)
    return Channel(name=name, input=checked, path=None if path is None else str(path))


def _checked(name: str, source: _Input) -> _Input:
    """Return an equal input whose types are checked: a struct's constructor checks none."""
    kind = type(source)
    check_texts(f"channel {name!r}", msgspec.to_builtins(source), error=InputError)
    members = msgspec.to_builtins(source)
    try:
        return msgspec.convert(members, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"channel {name!r}: {kind.__name__}: {explain(error, members, kind)}") from None


def model_channel(channels: Sequence[Channel], name: str, address: str, *, base: Path) -> tuple[Channel, ...]:
    """Return the channel that brings a model beside the job's own channels. Raises `InputError`."""
    if any(channel.name == name for channel in channels):
        raise InputError(f"channel {name!r}: given in inputs and by model_uri; rename one (model_channel_name)")
    return parse_inputs({name: address}, base=base)


def local_path(address: str, *, base: Path) -> Path | None:
    """Return the path that a plain path or a `file://` address means; None for another scheme.

    >>> local_path("file://data/train", base=Path("/home/me")), local_path("s3://bucket/x", base=Path("/"))
    (PosixPath('/home/me/data/train'), None)

    As in AWS's local mode, `file://data` is relative: the path starts after the two slashes. Escapes are decoded in an
    address whose special characters are all escaped, as `Path.as_uri` does; in any other one, such as
    `f"file://{folder}"` with a folder `ts=00%3A00`, only where nothing has the name as it is written.
    """
    # Only with `://`: the `a` of a file `a:b` is no scheme.
    match = _SCHEME.match(address)
    scheme = match[1].lower() if match else ""
    if scheme not in ("", "file"):
        return None
    # Only an address escapes characters: in a plain path `%` is a `%`.
    written = address[len("file://") :] if scheme else address
    decoded = unquote(written) if scheme else written
    is_escaped = written == quote(decoded) or (_exists(decoded, base) and not _exists(written, base))
    return _absolute(decoded if is_escaped else written, base)


def _absolute(path: str, base: Path) -> Path:
    return Path(os.path.abspath(base / expanded(path)))  # noqa: PTH100 - Path.resolve would follow links


def _exists(path: str, base: Path) -> bool:
    # Not `Path.exists`, which raises an error for a name that is too long.
    return os.path.exists(_absolute(path, base))  # noqa: PTH110


def share(files: Sequence[_Item], *, host: int, hosts: int) -> list[_Item]:
    """Return the files of one host under `ShardedByS3Key`: every `hosts`-th file of the sorted list.

    >>> share(["a", "b", "c"], host=0, hosts=2), share(["a", "b", "c"], host=1, hosts=2)
    (['a', 'c'], ['b'])
    """
    return list(files[host::hosts])
