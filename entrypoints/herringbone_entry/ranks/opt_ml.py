"""Keep a rank away from the machine's own `/opt/ml`, which all jobs share."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import Any

# The folder that AWS's containers have, and the parts of it that hold a job's files.
OPT_ML = "/opt/ml"
_JOB_FOLDERS = ("checkpoints", "code", "input", "model", "output")
_FILE_EVENTS = {"open", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.scandir", "os.symlink", "shutil.rmtree"}


def refuse_other_jobs_files(base: str) -> None:
    """Refuse Python's file operations on the job folders below `/opt/ml`, unless `/opt/ml` is this host's own tree.

    There it is the machine's: all jobs share it, so one would resume from another's checkpoint.
    """
    if base == OPT_ML:
        return
    with contextlib.suppress(OSError):
        if os.path.samefile(base, OPT_ML):  # noqa: PTH121 - pathlib costs 5 ms
            return
    if os.path.realpath(base).startswith(f"{OPT_ML}/"):
        return

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _FILE_EVENTS:
            for path in arguments[:2]:
                # `Path` has this method; numbers are open descriptors.
                text = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
                if text.startswith(OPT_ML) and text[len(OPT_ML) + 1 :].split("/")[0] in _JOB_FOLDERS:
                    raise PermissionError(
                        errno.EACCES,
                        f"this job's files are in {base}, and this {OPT_ML} belongs to all jobs of the machine; use "
                        "SM_CHECKPOINT_DIR, SM_MODEL_DIR, SM_OUTPUT_DATA_DIR and SM_CHANNEL_<NAME>",
                        text,
                    )

    sys.addaudithook(refuse)
