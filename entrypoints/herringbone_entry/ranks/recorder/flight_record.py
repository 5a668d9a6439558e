"""Give the supervisor this rank's last collective operations, as torch's flight recorder has them.

The thread that listens for orders (`ranks.orders`) carries this out, because the main thread may wait in a collective.

Source for the recorder: torch/csrc/distributed/c10d/FlightRecorder.hpp.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from typing import Any

# Operations of each process group that have ended and are reported all the same: ranks that are late have these open.
_MAX_DONE, _MAX_OPEN = 12, 12
_MAX_GROUPS = 16
_MAX_CHARS = 100
_DEFAULT = "default_pg"


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
    import time

    raw, groups = read()
    if not raw:
        return {}
    last = max(raw, key=_begun)
    if failed:
        last |= {"retired": False, "state": ""}
    return {"age": max(0.0, time.time() - _begun(last) / 1e9), "groups": groups, "entries": _shorten(raw)}


def read() -> tuple[list[dict[str, Any]], dict[str, list[int]]]:
    """Return the recorder's entries as torch has them, and the ranks of each process group as far as torch names them.

    This takes about 25 microseconds an entry, in which no other thread of Python runs.
    """
    import json
    import pickle

    bindings = sys.modules.get("torch._C._distributed_c10d") or getattr(
        sys.modules.get("torch._C"), "_distributed_c10d", None
    )
    raw: list[dict[str, Any]] = []
    groups: dict[str, list[int]] = {}
    # NCCL's and gloo's operations are in two recorders.
    for name in ("_dump_fr_trace", "_dump_nccl_trace"):
        # Any release of torch, and any failure of it: a look at a job must not end it.
        with contextlib.suppress(Exception):
            # Not its JSON, whose parsing alone takes longer than all of this.
            record = pickle.loads(getattr(bindings, name)(includeStackTraces=False))  # noqa: S301 - torch's own
            raw += record.get("entries", [])
            for key, group in record.get("pg_config", {}).items():
                name, desc = group.get("name") or key, group.get("desc") or ""
                groups[group_of({"process_group": (name, desc)})] = json.loads(group["ranks"])
    return raw, groups


def group_of(entry: Mapping[str, Any]) -> str:
    """Return the name of an entry's process group, "default_pg" for the one of all ranks.

    >>> group_of({"process_group": ("3", "mesh_tp")}), group_of({"process_group": ("0", "default_pg")})
    ('mesh_tp (3)', 'default_pg')

    Groups of a mesh have one description along each of its axes, and different ranks.
    """
    name, desc = (entry.get("process_group") or ("", ""))[:2]
    return f"{desc} ({name})"[:_MAX_CHARS] if name and desc not in ("", _DEFAULT) else str(desc or name or _DEFAULT)


def _shorten(raw: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep the newest operations that have ended, and the oldest that have not, of each process group."""
    by_group: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {}
    for entry in raw:
        done = bool(entry.get("retired")) or entry.get("state") == "completed"
        group = group_of(entry)
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
