"""A message of each kind that a rank sends when it connects, as decoded from JSON."""

from __future__ import annotations

from typing import Any

HELLO: dict[str, Any] = {
    "session": "1f",
    "lane": 0,
    "server": 0,
    "member": 0,
    "members": 1,
    "chunk_bytes": 4096,
    "ring": 16384,
    "most": 32,
    "silence": 3.5,
    "late": 60.0,
    "join_timeout": 5.0,
    "label": "rank 0 on a",
    "fabric": None,
}

INFO: dict[str, Any] = {
    "rank": 0,
    "size": 2,
    "host": "a",
    "addresses": [["10.0.0.5", 7601]],
    "local_path": "/tmp/s",
    "agreed": {},
    "job_rank": None,
}
