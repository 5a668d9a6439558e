"""A trial's script: on SIGTERM, save the state and end with exit code 0."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path


def stop(number: int, _: object) -> None:
    Path("/opt/ml/model/stopped").write_text(str(number))
    sys.exit(0)


signal.signal(signal.SIGTERM, stop)
# Only after the handler is set: the check sends SIGTERM as soon as it reads this line.
print("the trial runs", flush=True)
time.sleep(120)
