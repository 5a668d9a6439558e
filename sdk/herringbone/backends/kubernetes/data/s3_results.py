"""The results of a job in S3, where its pods have sent them; this machine's own credentials read them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from herringbone.aws.location import S3Location
from herringbone.aws.session import AwsSession
from herringbone.backends.kubernetes.data.claim_results import INSIDE, RunningLogs
from herringbone.backends.kubernetes.data.pod_s3 import fetch_files, host_location
from herringbone.s3.bucket import Buckets
from herringbone.s3.names import files_of
from herringbone.s3.staging import fetch_whole_checkpoints
from herringbone.system.progress import Progress
from herringbone_contract.errors import InputError

if TYPE_CHECKING:
    from herringbone.controller.artifacts import Say
    from herringbone.plan.plan import JobPlan
    from herringbone.records.download import Part
    from herringbone.s3.names import StoredObject

_LOG = re.compile(r"([a-z0-9][a-z0-9-]{0,62})\.log")


class S3Results:
    """Results below an `output_path` in S3, as `Results`; a log that is not sent yet is read in its pod."""

    def __init__(self, plan: JobPlan, running: RunningLogs, session: AwsSession | None = None) -> None:
        self._plan, self._running, self._session = plan, running, session or AwsSession()
        self._buckets = Buckets(self._session)
        self._hosts = [host.name for host in plan.hosts]

    def hosts_with(self, part: Part) -> list[str]:
        return [host for host in self._hosts if next(self._objects(host, f"{INSIDE[part]}/", most=1), None) is not None]

    def bring(self, part: Part, host: str, into: Path, say: Say) -> None:  # noqa: ARG002 - objects are files
        target, prefix = into / INSIDE[part], self._place(host, f"{INSIDE[part]}/")
        files = files_of(
            ((each.key.removeprefix(prefix.key), each) for each in self._objects(host, f"{INSIDE[part]}/")), str(prefix)
        )
        with Progress().downloading(f"{part} of {host}", sum(each.size for each in files.values())) as count:
            fetch_files(files, target, self._buckets, count)

    def bring_checkpoints(self, into: Path, say: Say) -> None:  # noqa: ARG002
        into.rmdir()
        fetch_whole_checkpoints(str(self._plan.options.checkpoint_s3_uri), into, self._session)

    def pods(self) -> Sequence[tuple[str, str]]:
        found = []
        for host in self._hosts:
            folder = f"{self._running.folder}/"
            prefix = self._place(host, folder)
            names = (each.key.removeprefix(prefix.key) for each in self._objects(host, folder))
            found += [(match[1], host) for match in map(_LOG.fullmatch, names) if match is not None]
        return found

    def lines(self, pod: str, host: str, first: int) -> Iterator[bytes]:
        if (lines := self._running.lines(pod, host, first)) is not None:
            yield from lines
            return
        try:
            stored = self._buckets.head(self._place(host, f"{self._running.folder}/{pod}.log"), "output_path")
        except InputError:
            return
        rest, number = b"", 1
        for piece in self._buckets.stream(stored):
            *whole, rest = (rest + piece).split(b"\n")
            yield from whole[max(0, first - number) :]
            number += len(whole)

    def _place(self, host: str, name: str) -> S3Location:
        location = host_location(str(self._plan.options.output_path), self._plan.job_name, host)
        return S3Location(location.bucket, location.key + name)

    def _objects(self, host: str, name: str, *, most: int = 1_000) -> Iterator[StoredObject]:
        return self._buckets.objects(self._place(host, name), "output_path", most=most)
