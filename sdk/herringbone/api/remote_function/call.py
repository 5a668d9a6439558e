"""`RemoteCall`: one call of a remote function, as a job whose result can be waited for."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from herringbone.api.remote_function import script
from herringbone.api.remote_function.bundle import find_cloudpickle
from herringbone_contract.errors import InputError, RemoteError

if TYPE_CHECKING:
    from herringbone.api.job import TrainingJob

_ERROR = re.compile(r"error-(\d{1,9})")


class RemoteTraceback(Exception):
    """The traceback of the job, as the cause of the error that the function raised there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


class RemoteCall:
    """A call that `submit` started; `job` is its job.

    >>> call = double.submit(21)                                  # doctest: +SKIP
    >>> call.result(timeout=600)                                  # doctest: +SKIP
    42

    The key that proves the result is only in this object, so only this Python can read the result.
    """

    def __init__(self, job: TrainingJob, key: bytes) -> None:
        self.job = job
        self._key = key

    def __repr__(self) -> str:
        return f"RemoteCall({self.job.name!r})"

    def done(self) -> bool:
        """Return True if the job is over, however it ended."""
        return self.job.status in ("Completed", "Failed", "Stopped")

    def stop(self) -> None:
        """Stop the job; `result` then raises `RemoteError`."""
        self.job.stop()

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the job, and return what the function returned on rank 0.

        Raises what the function raised, with the job's traceback as its cause; `JobFailedError` when the job failed
        otherwise; `RemoteError` when the job was stopped, or left a result that nobody with its key has signed;
        `TimeoutError` after `timeout` seconds, and the job continues.
        """
        self.job.wait(timeout)
        return self.outcome()

    def outcome(self, *, log_shown: bool = False) -> Any:
        """Return or raise what a job that is over has left."""
        status = self.job.status
        files = self._files()
        if status == "Completed" and "result" in files:
            return find_cloudpickle().loads(self._proven("result", files["result"]))
        failure = self.job.failure
        errors = {int(match[1]): name for name in files if (match := _ERROR.fullmatch(name))}
        if status == "Failed" and errors:
            # Other ranks may have failed because the first one did.
            first = failure.rank if failure is not None and failure.rank in errors else min(errors)
            name = errors[first]
            error, text = find_cloudpickle().loads(self._proven(name, files[name]))
            if error is not None:
                raise error from RemoteTraceback(text)
            raise RemoteError(f"job {self.job.name}: the function raised an error that cannot be pickled:\n{text}")
        self.job.raise_failure(log_shown=log_shown)
        raise RemoteError(
            f"job {self.job.name} is {status} and has no result: "
            + ("it was stopped" if status == "Stopped" else "the function's process ended before the function returned")
            + f"; herringbone logs {self.job.name}"
        )

    def _files(self) -> dict[str, bytes]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                output = self.job.download("output", Path(folder, "output"))
            except InputError:
                return {}  # the job wrote no output
            results = output / script.RESULTS
            return {path.name: path.read_bytes() for path in results.iterdir()} if results.is_dir() else {}

    def _proven(self, name: str, sealed: bytes) -> bytes:
        content = script.opened(self._key, name, sealed)
        if content is None:
            raise RemoteError(
                f"job {self.job.name}: the file {name!r} of its output is not signed with the job's key, so it was"
                " changed on its way or written by another program; it was not unpickled, because pickles run code"
            )
        return content
