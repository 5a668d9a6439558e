"""`sagemaker_training.intermediate_output`: send the files of a folder to S3 while the script writes them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from sagemaker_training import environment, logging_config, params

intermediate_path = environment.output_intermediate_dir
failure_file_path = os.path.join(environment.output_dir, "failure")
success_file_path = os.path.join(environment.output_dir, "success")

_SECONDS = 0.2
_logger = logging_config.get_logger()
# Two files with the same change time, size and number have the same content.
_Signature = tuple[int, int, int]


class IntermediateSync(threading.Thread):
    """Uploads each file that has stopped changing, until the training has ended; `join` waits for the last one."""

    def __init__(self, folder: str, upload: Callable[[str, str], None], is_over: Callable[[], bool]) -> None:
        # A daemon: a script that ends in an unexpected way must not wait for a network.
        super().__init__(name="intermediate-output", daemon=True)
        self._folder, self._upload, self._is_over = folder, upload, is_over
        self._sent: dict[str, _Signature] = {}

    def run(self) -> None:
        """Look at the folder again and again, and once more after the end."""
        before: dict[str, _Signature] = {}
        pause = threading.Event()
        over = False
        while not over:
            # Asked before the look, so that the last look sees all that was written before the end.
            over = self._is_over()
            now = dict(_signatures(self._folder))
            for path, signature in now.items():
                # A file that still changes would be sent half-written.
                if self._sent.get(path) != signature and (over or before.get(path) == signature):
                    self._send(path, signature)
            before = now
            if not over:
                pause.wait(_SECONDS)

    def _send(self, path: str, signature: _Signature) -> None:
        try:
            self._upload(os.path.join(self._folder, path), path)
        except FileNotFoundError:
            return
        except Exception as error:  # noqa: BLE001 - boto3's errors; a lost upload must not end the training
            _logger.error("intermediate output: %s could not be sent, and is tried again: %s", path, error)
            return
        self._sent[path] = signature


def start_sync(
    sagemaker_s3_output: str | None, region: str | None, endpoint_url: str | None = None
) -> IntermediateSync | None:
    """Send files of `/opt/ml/output/intermediate` to S3 from now on, and return the thread that does.

    >>> start_sync("s3://bucket/results", "us-east-1")                     # doctest: +SKIP

    They arrive at `s3://bucket/results/JOB/output/intermediate/`; a file that is removed here stays there. The file
    `success` or `failure` ends it. Returns None without an address, and where the folder exists already: the platform
    then sends it. Raises `ValueError` for an address of another kind.
    """
    if not sagemaker_s3_output or os.path.exists(intermediate_path):
        return None
    address = urlsplit(sagemaker_s3_output)
    if address.scheme != "s3":
        raise ValueError(f"intermediate output goes to s3://BUCKET/PREFIX, not to {sagemaker_s3_output!r}")
    import boto3

    client = boto3.client("s3", region_name=region, endpoint_url=endpoint_url)
    prefix = PurePosixPath(address.path.lstrip("/"), os.environ.get(params.TRAINING_JOB_ENV, ""))
    os.makedirs(intermediate_path)

    def upload(path: str, relative: str) -> None:
        client.upload_file(path, address.netloc, str(prefix / "output" / "intermediate" / relative))

    def is_over() -> bool:
        return os.path.exists(success_file_path) or os.path.exists(failure_file_path)

    thread = IntermediateSync(intermediate_path, upload, is_over)
    thread.start()
    return thread


def _signatures(folder: str) -> Iterator[tuple[str, _Signature]]:
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            try:
                status = os.stat(path, follow_symlinks=False)
            except OSError:
                continue
            # Links are left out: one could lead to files that are not the job's output.
            if os.path.isfile(path) and not os.path.islink(path):
                yield os.path.relpath(path, folder), (status.st_mtime_ns, status.st_size, status.st_ino)
