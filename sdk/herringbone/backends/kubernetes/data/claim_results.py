"""The results of a job in its claims: brought here by the reader pod, and packed here, as those of machines of `ssh:`.

    claim  hosts/algo-1/ml/{model,output/data}  --tar over exec-->   hosts/algo-1/ml/... --> one folder, or model.tar.gz
           hosts/algo-1/ml/output/log/UID/POD.log   --tail over exec-->  lines of the log

A script may write anything into its folders, so nothing there is believed: names are compared with those of the plan,
archives go through the one extractor, and the reader pod sees no folder of another job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol, cast

from herringbone.backends.kubernetes.data.reader import CHECKPOINTS, RESULTS, SILENCE_SECONDS, Output, Reader
from herringbone.backends.kubernetes.pods import CONTAINER, LOGS
from herringbone.controller.artifacts import Say
from herringbone.system.progress import Progress
from herringbone_contract.archives import unpack
from herringbone_contract.constants import DEFAULT_BASE

if TYPE_CHECKING:
    from herringbone.backends.kubernetes.api import Api
    from herringbone.plan.plan import JobPlan
    from herringbone.records.download import Part

INSIDE = {"model": "model", "output": "output/data"}
_POD = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
# $0 is the folder of the results, $1 a folder of each host, and the rest are the hosts.
_FULL = """\
cd "$0" && part=$1 && shift
for host; do [ -z "$(ls -A "hosts/$host/ml/$part" 2>/dev/null)" ] || echo "$host"; done
"""
_PODS = """\
cd "$0" && part=$1 && shift
for host; do for log in "hosts/$host/ml/$part"/*.log; do echo "$host $log"; done; done
"""
# A link of a script in the place of a log would lead elsewhere, and a FIFO would never end.
_TAIL = '[ ! -f "$1" ] || [ -L "$1" ] || exec tail -n "+$0" -- "$1"'
_SIZE = 'du -sk "$0" | cut -f1'
_CHUNK_BYTES = 1 << 18
# GNU's tar: a file has changed while it was read.
_CHANGED = 1


class Results(Protocol):
    """The files that the hosts of a job have left. Raises `HerringboneError` where they cannot be read."""

    def hosts_with(self, part: Part) -> list[str]:
        """Return the hosts that have files of the model or of the output."""

    def bring(self, part: Part, host: str, into: Path, say: Say) -> None:
        """Bring a host's part into `into`, the host's base folder here."""

    def bring_checkpoints(self, into: Path, say: Say) -> None:
        """Bring the checkpoints of all hosts."""

    def pods(self) -> Sequence[tuple[str, str]]:
        """See `KeptLogs`."""

    def lines(self, pod: str, host: str, first: int) -> Iterator[bytes]:
        """See `KeptLogs`."""


class RunningLogs:
    """The copies of logs as the pods that run see them; `running` returns those pods, by host.

    `uid` returns that of the job's ConfigMap.
    """

    def __init__(
        self, api: Api, namespace: str, running: Callable[[], Mapping[str, str]], uid: Callable[[], str]
    ) -> None:
        self._api, self._namespace, self._running, self._uid = api, namespace, running, uid

    @cached_property
    def folder(self) -> str:
        """The folder of this job's logs below a host's base folder."""
        return f"{LOGS}/{self._uid()}"

    def lines(self, pod: str, host: str, first: int) -> Iterator[bytes] | None:
        """Return the lines of a copy from number `first` on; None where no pod of the host runs."""
        if (running := self._running().get(host)) is None:
            return None
        words = ["/bin/sh", "-c", _TAIL, str(first), f"{DEFAULT_BASE}/{self.folder}/{pod}.log"]
        return _lines(Output(self._api.stream((self._namespace, running, CONTAINER), words, seconds=SILENCE_SECONDS)))


class ClaimResults:
    """The results in claims; a host that runs is asked for its logs itself."""

    def __init__(self, api: Api, plan: JobPlan, running: RunningLogs, progress: Progress | None = None) -> None:
        self._running, self._reader = running, Reader(api, plan)
        self._progress = progress or Progress()
        self._hosts = [host.name for host in plan.hosts]

    def hosts_with(self, part: Part) -> list[str]:
        words = self._reader.run("/bin/sh", "-c", _FULL, RESULTS, INSIDE[part], *self._hosts).split()
        return [host for host in self._hosts if host in words]

    def bring(self, part: Part, host: str, into: Path, say: Say) -> None:
        (target := into / INSIDE[part]).mkdir(parents=True)
        folder = f"{RESULTS}/hosts/{host}/ml/{INSIDE[part]}"
        self._unpack(folder, target, f"{part} of {host}", f"{DEFAULT_BASE}/{INSIDE[part]}", say)

    def bring_checkpoints(self, into: Path, say: Say) -> None:
        self._unpack(CHECKPOINTS, into, "checkpoints", f"{DEFAULT_BASE}/checkpoints", say)

    def pods(self) -> Sequence[tuple[str, str]]:
        words = self._reader.run("/bin/sh", "-c", _PODS, RESULTS, self._running.folder, *self._hosts).splitlines()
        pairs = (line.partition(" ") for line in words)
        logs = ((host, Path(log)) for host, _, log in pairs if log.endswith(".log"))
        return [(log.stem, host) for host, log in logs if host in self._hosts and _POD.fullmatch(log.stem)]

    def lines(self, pod: str, host: str, first: int) -> Iterator[bytes]:
        if (lines := self._running.lines(pod, host, first)) is None:
            path = f"{RESULTS}/hosts/{host}/ml/{self._running.folder}/{pod}.log"
            lines = _lines(self._reader.output("/bin/sh", "-c", _TAIL, str(first), path))
        yield from lines

    def _unpack(self, folder: str, into: Path, shown: str, root: str, say: Say) -> None:
        """Bring a folder of the reader pod into `into`; the script knows it as `root`."""
        size = self._reader.run("/bin/sh", "-c", _SIZE, folder).strip()

        def refused(name: str, why: str) -> None:
            say(f"{name} in {shown} is left out: {why}")

        with (
            self._progress.downloading(shown, int(size) << 10 if size.isdigit() else 0) as count,
            closing(self._reader.output("tar", "-C", folder, "-cf", "-", ".")) as output,
        ):
            unpack(cast("IO[bytes]", _Counted(output, count)), into, shown=shown, root=root, refused=refused)
            output.check(0, _CHANGED)


def _lines(output: Output) -> Iterator[bytes]:
    """Yield whole lines, without their ends: what has none may be still being written."""
    rest = b""
    with closing(output):
        while chunk := output.read(_CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines
        # A program that was cut off has not shown all lines.
        output.check(0)


class _Counted:
    """An output that reports the bytes which are read from it."""

    def __init__(self, output: Output, count: Callable[[int], None]) -> None:
        self._output, self._count = output, count

    def read(self, size: int) -> bytes:
        chunk = self._output.read(size)
        self._count(len(chunk))
        return chunk
