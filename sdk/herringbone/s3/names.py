"""From keys of a bucket to names of files, and the manifest of a channel. Pure.

Keys are text of others: a key may have the form of a path that leaves its folder. Such a key is refused and named.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from herringbone.aws.location import S3Location, is_s3, split_s3_uri
from herringbone_contract.errors import InputError
from herringbone_contract.masking import printable

_MAX_PART_BYTES = 255
_MAX_NAME_BYTES = 2_000


class StoredObject(NamedTuple):
    """An object as S3 lists it. `modified` is in seconds since 1970."""

    bucket: str
    key: str
    size: int
    etag: str
    modified: int


def name_below(prefix: str, key: str) -> str:
    """Return the name of a key's file in the folder of a channel whose address has that prefix, as SageMaker does.

    >>> name_below("data/train", "data/train/a.csv"), name_below("data/a.csv", "data/a.csv")
    ('a.csv', 'a.csv')
    >>> name_below("data/train", "data/train-2/b.csv")
    'train-2/b.csv'

    The prefix is text and no folder, so it also begins the keys of a folder with a longer name.
    """
    folder = prefix if prefix.endswith("/") or not prefix else f"{prefix}/"
    if key.startswith(folder):
        return key[len(folder) :]
    return key[prefix.rfind("/") + 1 :]


def check_name(name: str, address: str) -> str:
    """Return the name of an object's file. Raises `InputError` for one that is no path below a folder."""
    parts = name.split("/")
    problem = None
    if any(part in ("", ".", "..") for part in parts):
        problem = "has an empty part, '.' or '..' in its path"
    elif any(ord(character) < 0x20 or ord(character) == 0x7F for character in name):
        problem = "has a control character"
    elif len(name.encode("utf-8", "replace")) > _MAX_NAME_BYTES or any(
        len(part.encode("utf-8", "replace")) > _MAX_PART_BYTES for part in parts
    ):
        problem = "is too long for the name of a file"
    if problem is not None:
        raise InputError(f"{printable(address)}: the key {problem}, so no file can have its name; rename the object")
    return name


def is_folder(stored: StoredObject) -> bool:
    """Report whether an object stands for a folder."""
    return stored.key.endswith("/") and stored.size == 0


def files_of(objects: Iterable[tuple[str, StoredObject]], address: str) -> dict[str, StoredObject]:
    """Return the objects by the names of their files, sorted by name.

    `objects` are pairs of a name and an object. Empty objects whose keys end with a slash stand for folders and are
    left out. Raises `InputError` for names that cannot be files in one folder.
    """
    files: dict[str, StoredObject] = {}
    for name, stored in objects:
        if is_folder(stored):
            continue
        where = f"s3://{stored.bucket}/{stored.key}"
        check_name(name, where)
        if name in files and files[name] != stored:
            raise InputError(f"{address}: two objects would be the file {printable(name)}; rename one")
        files[name] = stored
    for name in files:
        folder = name
        while folder := folder.rpartition("/")[0]:
            if folder in files:
                raise InputError(
                    f"{address}: {printable(folder)} is an object, and {printable(name)} needs a folder of that name; "
                    "rename one"
                )
    return dict(sorted(files.items()))


def parse_manifest(text: bytes, address: str) -> tuple[S3Location, tuple[str, ...]]:
    """Return the prefix and the names of a `ManifestFile`.

    >>> parse_manifest(b'[{"prefix": "s3://b/train/"}, "a.csv", "x/b.csv"]', "s3://b/m")[1]
    ('a.csv', 'x/b.csv')

    Each name, appended to the prefix, is a key. Raises `InputError`.
    """
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{address}: the manifest is no JSON: {error}") from None
    if (
        not isinstance(entries, list)
        or len(entries) < 2
        or not isinstance(entries[0], dict)
        or not is_s3(entries[0].get("prefix") if isinstance(entries[0].get("prefix"), str) else None)
        or not all(isinstance(entry, str) and entry for entry in entries[1:])
    ):
        raise InputError(
            f'{address}: a manifest is a list, [{{"prefix": "s3://BUCKET/FOLDER/"}}, "FILE", ...], with a file or more'
        )
    return split_s3_uri(entries[0]["prefix"]), tuple(entries[1:])


def split(address: str, option: str) -> S3Location:
    """Return bucket and prefix of an address; a slash at the end stays. Raises `InputError` without a bucket.

    >>> split("s3://mine/data/", "channel 'train'")
    S3Location(bucket='mine', key='data/')
    """
    location = split_s3_uri(address)
    if not location.bucket:
        raise InputError(f"{option}: {address} names no bucket; write s3://BUCKET/PREFIX")
    return location


def whole_checkpoints(names: Sequence[str]) -> list[str]:
    """Return the files that belong to whole checkpoints.

    >>> whole_checkpoints(["a/rank-00000.safetensors", "b/rank-00000.safetensors", "b/manifest.json", "model.pt"])
    ['b/rank-00000.safetensors', 'b/manifest.json', 'model.pt']

    A folder in the form of `herringbone_contract.checkpoint` is whole when it has its manifest, which is sent last.
    Hidden files, and files with a suffix of unfinished ones, belong to none.
    """
    manifests = {name.rpartition("/")[0] for name in names if name.endswith("/manifest.json")}
    torn = {
        folder
        for name in names
        for folder, _, file in [name.rpartition("/")]
        if file.startswith("rank-") and file.endswith(".safetensors") and folder and folder not in manifests
    }
    return [name for name in names if name.rpartition("/")[0] not in torn and not is_unfinished(name)]


def is_unfinished(name: str) -> bool:
    """Report whether a file of checkpoints is still being written, by its name.

    >>> is_unfinished(".epoch-1.7.unfinished/rank-00000.safetensors"), is_unfinished("epoch-1.pt.tmp")
    (True, True)
    """
    hidden = any(part.startswith(".") for part in name.split("/"))
    return hidden or name.endswith((".tmp", ".new", ".part", ".partial", ".unfinished"))
