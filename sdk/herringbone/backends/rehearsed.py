"""Tell jobs of the same code, image, distribution and backend, for which one rehearsal counts."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress

from herringbone.records.home import Home
from herringbone.records.index import JobRecord, stored_facts
from herringbone.records.rehearsals import results, sentence
from herringbone_contract import safe_tree

# Larger files are data.
_FILE_BYTES = 16 << 20
_CACHES = "__pycache__"


def rehearsed(record: JobRecord, home: Home) -> str:
    """Return what the newest rehearsal of a job's code says, on the same backend; "" without one."""
    # Most homes have no rehearsal, and look at no code.
    if not home.rehearsals.is_dir() or not (found := results(home)) or (key := key_of(record, home)) is None:
        return ""
    return next((sentence(result) for result in found if key in result.keys), "")


def key_of(record: JobRecord, home: Home) -> str | None:
    """Return what two jobs with the same code, image, distribution and backend have in common; None if not known."""
    plan, facts = record.plan_dict, stored_facts(record)
    code = _digest(record, home) or _commit(facts.get("Code") or {})
    if code is None:
        return None
    image = facts.get("ImageId") or facts.get("Image") or (plan.get("arguments") or {}).get("image_uri")
    script = (plan.get("source") or {}).get("entry_point")
    members = [record.backend, plan.get("distribution"), image, script, code]
    return hashlib.sha256(json.dumps(members, sort_keys=True).encode()).hexdigest()


def _commit(code: dict[str, object]) -> object:
    return None if code.get("Dirty", True) else code.get("Commit")


def _digest(record: JobRecord, home: Home) -> str | None:
    """Return the digest of the code that the first host got; None where this machine has no copy of it."""
    digest = hashlib.sha256()
    with suppress(OSError, IndexError, KeyError):
        base = home.job(record.name).host(record.plan_dict["hosts"][0]["name"]) / "code"
        with safe_tree.folder(base) as top:
            for entry in safe_tree.walk(top):
                # A script may write next to its code.
                made_here = record.started is not None and entry.state.st_mtime > record.started
                if entry.kind == "file" and _CACHES not in entry.name.split("/") and not made_here:
                    digest.update(f"{entry.name}\0{entry.state.st_size}\0".encode())
                    digest.update(safe_tree.read_file(top, entry.name, limit=_FILE_BYTES))
        return digest.hexdigest()
    return None
