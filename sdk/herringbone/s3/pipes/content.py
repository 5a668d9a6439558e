"""The parts of a channel in Pipe mode, from files of this machine or from S3: read in an epoch's order."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from herringbone.aws.location import S3Location, is_s3
from herringbone.s3.bucket import Buckets
from herringbone.s3.names import StoredObject, split
from herringbone.s3.pipes.order import Pipe
from herringbone.s3.pipes.records import attributes_of, epoch_order, parse_lines, record, unzipped
from herringbone_contract.errors import InputError

_READ_BYTES = 1 << 20
# Objects up to this size are fetched whole, several at once and ahead of the reader: small ones cost a round trip each.
_SMALL_BYTES = 4 << 20
_AHEAD, _THREADS = 16, 8

Open = Callable[[], Iterator[bytes]]
# The location of an object alone: that of a line of a manifest, which was not listed.
_Part = Path | StoredObject | S3Location


class Content:
    """The content of one channel for one host; `connect` returns the buckets, and is called for S3 alone.

    >>> b"".join(Content(pipe, connect).epoch(0))                       # doctest: +SKIP
    b'...'

    Reads the list of parts at once: what is added later belongs to no epoch. `epoch` raises `HerringboneError` and
    `OSError`.
    """

    def __init__(self, pipe: Pipe, connect: Callable[[], Buckets]) -> None:
        self._pipe, self._connect = pipe, connect
        self._parts: Sequence[Any]
        data = Path(pipe.data)
        if pipe.attributes:
            self._parts = parse_lines(data.read_bytes(), pipe.attributes, pipe.address)
        elif pipe.is_listing:
            self._parts = read_listing(data)
        else:
            # Sorted, because every host must compute the same shares.
            self._parts = sorted(path for path in data.rglob("*") if path.is_file()) if data.is_dir() else [data]

    def epoch(self, number: int) -> Generator[bytes, None, None]:
        """Yield the bytes of an epoch."""
        pipe = self._pipe
        order = epoch_order(len(self._parts), number, seed=pipe.seed, host=pipe.position, hosts=pipe.hosts)
        if pipe.attributes:
            yield from self._lines(order)
            return
        for name, pieces in self._ahead(self._parts[position] for position in order):
            content = unzipped(pieces, name) if pipe.gzip else pieces
            if pipe.wrap:
                yield from record(b"".join(content), name)
            else:
                yield from content

    def _lines(self, order: Sequence[int]) -> Iterator[bytes]:
        """Yield the attributes of lines; the objects that lines refer to are fetched ahead."""
        attributes = [attribute for position in order for attribute in attributes_of(self._parts[position])]
        contents = self._ahead(self._located(each.address) for each in attributes if each.address is not None)
        for attribute in attributes:
            name, pieces = (self._pipe.address, iter([attribute.content]))
            if attribute.address is not None:
                name, pieces = next(contents)
            if self._pipe.wrap:
                yield from record(b"".join(pieces), name)
            else:
                yield from pieces

    def _located(self, address: str) -> S3Location | Path:
        if is_s3(address):
            return split(address, f"channel {self._pipe.channel!r}")
        # A path of a manifest of this machine counts from the manifest's folder.
        return Path(self._pipe.data).parent / address

    def _ahead(self, parts: Iterator[_Part]) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Yield name and content of each part; small objects are fetched before they are asked for."""
        pool = ThreadPoolExecutor(_THREADS)
        waiting: deque[tuple[str, Open]] = deque()
        try:
            for part in parts:
                waiting.append((_name_of(part), self._start(part, pool)))
                if len(waiting) > _AHEAD:
                    name, start = waiting.popleft()
                    yield name, start()
            while waiting:
                name, start = waiting.popleft()
                yield name, start()
        finally:
            # Also when the reader has left: what is still being fetched is of no use.
            pool.shutdown(wait=False, cancel_futures=True)

    def _start(self, part: _Part, pool: ThreadPoolExecutor) -> Open:
        if isinstance(part, Path):
            return partial(_pieces, part)
        buckets = self._connect()
        if isinstance(part, StoredObject) and part.size > _SMALL_BYTES:
            return partial(buckets.stream, part)

        def read() -> bytes:
            stored = part if isinstance(part, StoredObject) else buckets.head(part, f"channel {self._pipe.channel!r}")
            return b"".join(buckets.stream(stored))

        whole: Future[bytes] = pool.submit(read)
        return lambda: iter([whole.result()])


def write_listing(path: Path, objects: Sequence[StoredObject]) -> None:
    """Write the list of a channel's objects, without their content, for `read_listing`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(objects))


def read_listing(path: Path) -> list[StoredObject]:
    """Return the objects of a list that `write_listing` wrote."""
    return [StoredObject(*entry) for entry in json.loads(path.read_text())]


def _name_of(part: _Part) -> str:
    return str(part) if isinstance(part, Path) else f"s3://{part.bucket}/{part.key}"


def _pieces(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while piece := file.read(_READ_BYTES):
                yield piece
    except FileNotFoundError:
        raise InputError(
            f"{path}: no such file; it was there when the job was planned, or a manifest names it"
        ) from None
