"""Give the supervisor this rank's last collective operations, as torch's flight recorder has them.

    supervisor                        rank
    writes to PATH.ask (a FIFO)  -->  a thread that only waits there
    reads PATH.flight            <--  writes it, and renames it into place

The main thread may wait inside a collective, so another thread must answer. It starts when the script imports
torch.distributed, and other scripts never have it. While it waits it costs nothing.

Source for the recorder: torch/csrc/distributed/c10d/FlightRecorder.hpp.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import sys
from typing import Any

_MODULE = "torch.distributed.distributed_c10d"
# torch has read the first of these since 2.8, and warns about the second one.
BUFFER, OLD_BUFFER = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
_FIRST_WITH_BUFFER = (2, 8)
# Operations of each process group that have ended and are reported all the same: ranks that are late have these open.
_MAX_DONE, _MAX_OPEN = 12, 12
_MAX_CHARS = 100


class FlightFinder:
    """Starts the thread when the script imports torch.distributed; finds no module itself."""

    def __init__(self, path: str) -> None:
        self._path = path

    def find_spec(self, name: str, *_: object) -> None:
        """Return None, so that Python asks the next finder."""
        if name != _MODULE:
            return
        # Once is enough.
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        version = getattr(sys.modules.get("torch.version"), "__version__", "")
        numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
        if BUFFER in os.environ and numbers < _FIRST_WITH_BUFFER:
            os.environ.setdefault(OLD_BUFFER, os.environ[BUFFER])
        _thread.start_new_thread(_serve, (self._path,))


def _serve(path: str) -> None:
    """Answer each request, until the FIFO or the disk fails."""
    with contextlib.suppress(OSError):
        while True:
            # Opening waits until the supervisor opens the other end, without the GIL.
            with open(f"{path}.ask", "rb") as requests:  # noqa: PTH123 - pathlib costs milliseconds
                requests.read()
            answer = dump()
            with open(f"{path}.part", "w", encoding="utf-8") as file:  # noqa: PTH123
                file.write(answer)
            os.rename(f"{path}.part", f"{path}.flight")  # noqa: PTH104


def dump() -> str:
    """Return the recorder's content as short JSON; an empty text without a recorder.

    `age` is the time in seconds since this rank began its last collective. Each of `entries` has `group`, `seq`, `op`,
    `shape`, `done` and `p2p`; `groups` maps a process group to its ranks.
    """
    import json
    import time

    bindings = sys.modules.get("torch._C._distributed_c10d") or getattr(
        sys.modules.get("torch._C"), "_distributed_c10d", None
    )
    raw: list[dict[str, Any]] = []
    groups: dict[str, list[int]] = {}
    # NCCL's and gloo's operations are in two recorders.
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        try:
            record = json.loads(getattr(bindings, name)())
            raw += record.get("entries", [])
            for key, group in record.get("pg_config", {}).items():
                groups[_group(group.get("desc") or group.get("name") or key)] = json.loads(group["ranks"])
        except Exception:  # noqa: BLE001, PERF203 - any release of torch, and any failure of it, must not end the rank
            continue
    if not raw:
        return ""
    begun = max(entry.get("time_created_ns") or 0 for entry in raw)
    return json.dumps({"age": max(0.0, time.time() - begun / 1e9), "groups": groups, "entries": _shorten(raw)})


def _shorten(raw: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep the newest operations that have ended, and the oldest that have not, of each process group."""
    by_group: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {}
    for entry in raw:
        done = bool(entry.get("retired")) or entry.get("state") == "completed"
        group = _group((entry.get("process_group") or ["", ""])[1] or "")
        p2p = bool(entry.get("is_p2p"))
        short = {
            "group": group,
            "seq": entry.get("p2p_seq_id" if p2p else "collective_seq_id") or 0,
            "op": str(entry.get("profiling_name", "")).rpartition(":")[2][:_MAX_CHARS],
            "shape": f"{entry.get('input_sizes')} {' '.join(map(str, entry.get('input_dtypes') or ()))}"[:_MAX_CHARS],
            "done": done,
            "p2p": p2p,
        }
        by_group.setdefault(group, ([], []))[0 if done else 1].append(short)
    return [entry for ended, waiting in list(by_group.values())[:16] for entry in ended[-_MAX_DONE:] + waiting[:_MAX_OPEN]]


def _group(name: str) -> str:
    return str(name)[:_MAX_CHARS] or "default_pg"
