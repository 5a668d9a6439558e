"""Give the supervisor this rank's last collective operations, as torch's flight recorder has them.

The thread that listens for orders (`ranks.orders`) carries this out, because the main thread may wait in a collective.

Source for the recorder: torch/csrc/distributed/c10d/FlightRecorder.hpp.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

# Operations of each process group that have ended and are reported all the same: ranks that are late have these open.
_MAX_DONE, _MAX_OPEN = 12, 12
_MAX_GROUPS = 16
_MAX_CHARS = 100


def obey(_order: dict[str, Any]) -> dict[str, Any]:
    """Return the record of this rank, `{}` without one."""
    return dump()


def dump(*, failed: bool = False) -> dict[str, Any]:
    """Return the recorder's content, shortened; `{}` without a recorder, or when it is empty.

    torch counts an operation that raised an error as ended. In the record of a rank that has `failed`, the last
    operation therefore counts as open.

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
        # Any release of torch, and any failure of it: a look at a job must not end it.
        with contextlib.suppress(Exception):
            record = json.loads(getattr(bindings, name)())
            raw += record.get("entries", [])
            for key, group in record.get("pg_config", {}).items():
                groups[_group(group.get("desc") or group.get("name") or key)] = json.loads(group["ranks"])
    if not raw:
        return {}
    last = max(raw, key=_begun)
    if failed:
        last |= {"retired": False, "state": ""}
    return {"age": max(0.0, time.time() - _begun(last) / 1e9), "groups": groups, "entries": _shorten(raw)}


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
    groups = list(by_group.values())[:_MAX_GROUPS]
    return [entry for ended, waiting in groups for entry in ended[-_MAX_DONE:] + waiting[:_MAX_OPEN]]


def _begun(entry: dict[str, Any]) -> int:
    return entry.get("time_created_ns") or 0


def _group(name: str) -> str:
    return str(name)[:_MAX_CHARS] or "default_pg"
