"""Write the service's small files: complete or not at all, and readable by its user alone."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

# A file that begins so belongs to a service that was killed while it wrote.
_PARTIAL = ".new-"


def write_private(path: Path, content: bytes) -> None:
    """Replace a file by one of mode 0600 that is complete, also after a power failure.

    >>> write_private(Path("keys.json"), b"{}")
    >>> oct(Path("keys.json").stat().st_mode & 0o777)
    '0o600'

    Raises `OSError`; the file is then as it was.
    """
    # mkstemp makes a file of mode 0600, and the rename shows readers the old file or the new one.
    descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=_PARTIAL)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            # After a crash of the machine, an empty file would look like a damaged one.
            os.fsync(file.fileno())
        Path(partial).replace(path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
