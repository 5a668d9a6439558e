"""`python -m herringbone.s3.sync`: send a job's checkpoints to S3 while it runs, and its results when it is over.

    controller                                           this process
    line 1: SyncOrder                       ---------->  scan the folder every few seconds, send whole checkpoints
    line 2: the packed results              ---------->  last scan, send the results
                                            <----------  {"failed": "..."}, or {} for success
    end of the input without line 2         ---------->  last scan; the controller died, or another one goes on

Started by the job's controller. The order has credentials, so it comes through a pipe.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from herringbone.aws.location import S3Location
from herringbone.aws.session import Access, AwsSession
from herringbone.s3.bucket import Buckets
from herringbone.s3.checkpoint_sync import FileState, plan_removals, plan_sync
from herringbone.s3.names import split
from herringbone.s3.staging import checkpoint_prefix
from herringbone_contract import safe_tree
from herringbone_contract.checkpoint.ledger import read_ledgers
from herringbone_contract.checkpoint.manifest import MANIFEST, NEWEST, Manifest, parse
from herringbone_contract.errors import AwsError, HerringboneError
from herringbone_contract.masking import printable

_SCAN_SECONDS = 5.0
# The member of an object's metadata that has `Manifest.save`.
_SAVE = "herringbone-save"
_MOST_MANIFEST_BYTES = 1 << 30
_ATTEMPTS, _PAUSE_SECONDS = 5, 2.0


class SyncOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The order for one job: `checkpoints` is a folder and its address, `output` the address of the results.

    The results get the name of the job below that address, as on SageMaker. `several`: the hosts of the job have
    folders of their own, on several machines, and each machine sends its own.
    """

    job: str
    checkpoints: tuple[str, str] | None
    output: str | None
    access: Access
    several: bool = False
    seconds: float = _SCAN_SECONDS


class CheckpointSync:
    """Brings the bucket up to date with a folder, one scan at a time.

    Where `several` machines have parts of a checkpoint, each sends its files with the number of the save, and the
    manifest once all files of that save are in the bucket. Whoever is last finds all of them.

    The hosts of a `job` with `keep_checkpoints` write into their ledgers which checkpoints they remove.
    """

    def __init__(self, folder: Path, uri: str, buckets: Buckets, *, several: bool = False, job: str = "") -> None:
        self._folder, self._prefix, self._buckets = folder, checkpoint_prefix(uri), buckets
        self._several, self._job = several, job
        self._before: dict[str, FileState] = {}
        self._sent: dict[str, FileState] | None = None

    def step(self, *, over: bool) -> int:
        """Scan the folder once and send what is whole; return the number of files sent. Raises `HerringboneError`."""
        now = self._scan()
        if self._sent is None:
            self._sent = self._in_bucket(now)
        steps = plan_sync(now, self._before, self._sent, over=over)
        for name in steps.remove:
            # Files that this folder lacks may be another machine's.
            if self._several and not name.endswith(f"/{MANIFEST}"):
                continue
            self._buckets.delete(self._location(name))
            self._sent.pop(name, None)
        sent, waits = 0, False
        saves = {name: self._manifest(name) for name in steps.send if self._several and name.endswith(f"/{MANIFEST}")}
        for name in steps.send:
            unit = name.partition("/")[0]
            manifest = saves.get(f"{unit}/{MANIFEST}")
            if name in saves and not self._is_in_bucket(unit, saves[name], now):
                waits = True
                continue
            # `newest` names a checkpoint that is whole, and this one may be waiting for other machines.
            if name == NEWEST and waits:
                continue
            try:
                self._send(name, {} if manifest is None else {_SAVE: manifest.save})
            except FileNotFoundError:
                # Removed since the scan, as its whole checkpoint is, by the job or by its script.
                continue
            self._sent[name] = now[name]
            sent += 1
        self._before = now
        for name in plan_removals(now, self._sent, read_ledgers(self._folder, self._job).removed):
            self._buckets.delete(self._location(name))
            del self._sent[name]
        return sent

    def _manifest(self, name: str) -> Manifest:
        with safe_tree.folder(self._folder) as top:
            return parse(safe_tree.read_file(top, name, limit=_MOST_MANIFEST_BYTES), name)

    def _is_in_bucket(self, unit: str, manifest: Manifest, now: Mapping[str, FileState]) -> bool:
        """Report whether the files of a save that other machines have are all in the bucket."""
        others = [name for name in manifest.files if f"{unit}/{name}" not in now]
        return all(
            self._buckets.metadata(self._location(f"{unit}/{name}")).get(_SAVE) == manifest.save for name in others
        )

    def _scan(self) -> dict[str, FileState]:
        # The folder is the script's, which may leave links to anywhere; `walk` follows none.
        with safe_tree.folder(self._folder) as top:
            return {
                entry.name: FileState(entry.state.st_size, entry.state.st_mtime_ns)
                for entry in safe_tree.walk(top)
                if entry.kind == "file"
            }

    def _in_bucket(self, now: dict[str, FileState]) -> dict[str, FileState]:
        """Return the files that the bucket has as they are here: those that the job's start has fetched."""
        sent = {}
        for stored in self._buckets.objects(self._prefix, "checkpoint_s3_uri"):
            name = stored.key.removeprefix(self._prefix.key)
            state = FileState(stored.size, stored.modified * 1_000_000_000)
            # Known by name in any case: a checkpoint of this name that comes now replaces it.
            sent[name] = now[name] if now.get(name) == state else FileState(-1, 0)
        return sent

    def _send(self, name: str, metadata: dict[str, str]) -> None:
        with safe_tree.folder(self._folder) as top, safe_tree.open_file(top, name) as file:
            self._buckets.write(file, self._location(name), metadata=metadata)

    def _location(self, name: str) -> S3Location:
        return S3Location(self._prefix.bucket, self._prefix.key + name)


def result_address(output: str, job: str, name: str) -> S3Location:
    """Return the location of a file of packed results. Pure.

    >>> str(result_address("s3://mine/models/", "digits-1", "model.tar.gz"))
    's3://mine/models/digits-1/output/model.tar.gz'
    """
    location = split(output, "output_path")
    return S3Location(location.bucket, "/".join(filter(None, (location.key.strip("/"), job, "output", name))))


def send_results(folder: Path, output: str, job: str, buckets: Buckets) -> None:
    """Send the packed archives in a folder, or the files of a model that is not packed."""
    if not folder.is_dir():
        return
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        # Packing writes to a hidden name first.
        if path.is_file() and not path.is_symlink() and not name.startswith("."):
            buckets.upload(path, result_address(output, job, name))


def main(read: int = 0, write: int = 1) -> None:
    """Follow the orders on the descriptor `read`, and answer on `write`."""
    # The controller alone decides when the job is over; a signal to its group is not meant for this process.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    lines = _Lines(read)
    first = lines.next(None)
    if first is None:
        return
    order = msgspec.json.decode(first, type=SyncOrder)
    buckets = Buckets(AwsSession.by(order.access))
    sync = None
    if order.checkpoints is not None:
        folder, uri = order.checkpoints
        sync = CheckpointSync(Path(folder), uri, buckets, several=order.several, job=order.job)
    last = None
    while sync is not None:
        last = lines.next(order.seconds)
        if last is not None or lines.is_over:
            break
        try:
            sync.step(over=False)
        except (HerringboneError, OSError) as error:
            # The next scan tries again: servers come back, and credentials are renewed.
            print(f"checkpoints: {printable(str(error))}", file=sys.stderr)
    last = last or lines.next(None)
    answer: dict[str, str] = {}
    try:
        if sync is not None:
            try_often(lambda: sync.step(over=True))
        if last is not None and order.output is not None:
            results, output = Path(json.loads(last)["results"]), order.output
            try_often(lambda: send_results(results, output, order.job, buckets))
    except (HerringboneError, OSError) as error:
        answer = {"failed": printable(str(error))}
        print(answer["failed"], file=sys.stderr)
    try:
        os.write(write, json.dumps(answer).encode())
    except BrokenPipeError:
        return


def try_often(call: Callable[[], object]) -> None:
    """Call again after errors of the service, some times."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            call()
        except AwsError:
            if attempt == _ATTEMPTS:
                raise
            time.sleep(_PAUSE_SECONDS * attempt)
        else:
            return


class _Lines:
    """Lines of a pipe, each waited for."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._text = descriptor, b""
        self.is_over = False

    def next(self, seconds: float | None) -> bytes | None:
        """Return the next line; None after `seconds`, or at the end of the input."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while b"\n" not in self._text and not self.is_over:
            rest = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._descriptor], [], [], rest)[0]:
                return None
            piece = os.read(self._descriptor, 1 << 16)
            self._text += piece
            self.is_over = not piece
        line, newline, self._text = self._text.partition(b"\n")
        return line if newline else None


if __name__ == "__main__":
    main()
