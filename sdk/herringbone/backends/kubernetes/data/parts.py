"""Code and channels that a Secret cannot hold: in the job's results while it runs, sent there by the reader pod.

client --exec, bytes--> reader pod: claim  FOLDER/JOB/input/sourcedir.tar.gz  --mounted--> /herringbone/parts of hosts
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from herringbone.backends.kubernetes.data.reader import RESULTS, Reader
from herringbone.backends.kubernetes.pods import PARTS_FOLDER
from herringbone.system.progress import Progress
from herringbone_contract.errors import KubernetesError

_FOLDER = f"{RESULTS}/{PARTS_FOLDER}"
# $0 is the file. Complete or not there: a pod never sees half of it.
_WRITE = 'umask 077 && mkdir -p "${0%/*}" && cat >"$0.partial" && mv "$0.partial" "$0"'
_PIECE_BYTES = 1 << 20


def send_parts(reader: Reader, parts: Mapping[str, Path], progress: Progress) -> None:
    """Send files to the job's results. Raises `KubernetesError` or `RequestError`."""
    for name, path in parts.items():
        shown = name.removesuffix(".tar.gz").replace("sourcedir", "code").replace("channel.", "channel ")
        with (
            path.open("rb") as file,
            progress.uploading(shown, path.stat().st_size) as count,
            closing(reader.execution("/bin/sh", "-c", _WRITE, f"{_FOLDER}/{name}", stdin=True)) as execution,
        ):
            while piece := file.read(_PIECE_BYTES):
                execution.write(piece)
                count(len(piece))
            execution.end_input()
            words = b"".join(data for _, data in execution.pieces()).decode("utf-8", "replace").strip()
            if code := execution.exit_code:
                raise KubernetesError(
                    f"{shown} cannot be written into the claim of output_path: exit code {code}: {words}"
                )


def remove_parts(reader: Reader) -> None:
    """Remove the files, also those of a submission that was interrupted."""
    reader.run("rm", "-rf", "--", _FOLDER)
