"""Roll a folder of checkpoints back behind a fault: supervisors do so when all ranks have ended.

    .<name>.1.set-aside     a checkpoint that is newer than the fault: nobody finds it by this name, and nothing is lost
    .roll-back.json         the step whose data, and that of all before it, is not used again

Both travel with the checkpoints, so the next attempt finds them wherever it runs.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path

from herringbone_contract.checkpoint.manifest import MANIFEST, NEWEST
from herringbone_contract.checkpoint.publication import note_newest
from herringbone_contract.checkpoint.verification import newest_tag, read_manifest
from herringbone_contract.constants import HostVariable
from herringbone_contract.errors import ParallelError
from herringbone_contract.faults.bad_steps import BadSteps
from herringbone_contract.files import try_locked, write_whole

_FILE, _LOCK = ".roll-back.json", ".roll-back.lock"
_LOCK_SECONDS = 5.0
_SET_ASIDE = ".set-aside"
# Hugging Face's Trainer names the folder, Lightning the file.
_STEP = {"folder": re.compile(r"checkpoint-(\d+)"), "file": re.compile(r"(?:^|[^a-z])step=(\d+).*\.ckpt")}
# Files that are written after a checkpoint, or without any.
_TEXTS = (".csv", ".tsv", ".jsonl", ".log", ".txt", ".md", ".html", ".png", ".yaml", ".yml")
_EVENT_FILES = "tfevents"
# A file that is no longer, with the name or the number of a checkpoint, leads to that one.
_POINTER_BYTES = 256
_NUMBER = re.compile(r"(\d+)(?=\D*$)")


def is_beside(name: str) -> bool:
    """Report whether a file lies among checkpoints, and is none by its name: a table, the name of the newest one.

    >>> is_beside("run/metrics.csv"), is_beside("step-4/model.pt")
    (True, False)
    """
    # A text, and no path: there may be a hundred thousand files.
    last = name.rpartition("/")[2]
    return last == NEWEST or _EVENT_FILES in last or last.endswith(_TEXTS)


def roll_back(folder: Path, bad: BadSteps, *, job: str = "") -> list[str]:
    """Set the checkpoints of a job aside that may have the fault, note the data to pass over, and return their names.

    A checkpoint whose step is known is compared with the steps, any other file with the time of the last good loss.
    Of an attempt that was rolled back before and has had no good loss since, the one that it began from is set aside,
    too. Hosts may share the folder, and do the same at the same time.
    """
    with ExitStack() as stack:
        # A file system without locks: the steps below may then be taken by two hosts at a time.
        with suppress(OSError):
            stack.enter_context(try_locked(folder / _LOCK, seconds=_LOCK_SECONDS) or nullcontext())
        late: list[Path] = []
        _is_late(folder, bad, late)
        before, batches = passed_over(folder, job)
        if bad.end is not None and bad.end > before:
            note = {"end": bad.end, "batches": bad.batches or batches, "job": job}
            with suppress(OSError):
                write_whole(folder / _FILE, json.dumps(note).encode(), mode=0o666, synced=True)
            # Another host of this folder finds the note of this fault.
            if bad.begin is None and before and (left := _with_steps(folder, late)):
                late.append(max(left)[1])
        parents = {path.parent for path in late}
        pointers = [(path, target, target.is_dir()) for parent in parents for path, target in _pointers(parent).items()]
        names = [str(path.relative_to(folder)) for path in sorted(late) if _set_aside(path)]
        for parent in parents:
            _correct_newest(parent)
        for path, target, is_folder in pointers:
            if not os.path.lexists(target):
                _lead_back(path, target.suffix, is_folder=is_folder)
        return names


def passed_over(folder: str | os.PathLike[str] | None, job: str | None = None) -> tuple[int, int]:
    """Return the step before which no data is used again, and the batches that each takes; (0, 0) without a fault.

    `job` is the job's name, by default that of this process. The fault of another job counts where its checkpoints are
    left, with which this one goes on.
    """
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        found = json.loads(Path(folder or os.devnull, _FILE).read_bytes())
        own = os.environ.get(HostVariable.JOB_NAME, "") if job is None else job
        if found.get("job", own) != own and not _entries(Path(folder or os.devnull)):
            return 0, 0
        end, batches = int(found["end"]), int(found["batches"])
        return max(end, 0), max(batches, 0)
    return 0, 0


def _is_late(folder: Path, bad: BadSteps, late: list[Path]) -> bool:
    """Add the latest checkpoints of a folder to `late`; report whether all of it is later than the fault."""
    verdicts = []
    for path in _entries(folder):
        is_folder = path.is_dir() and not path.is_symlink()
        step = _step_of(path, is_folder=is_folder)
        is_whole = not is_folder or step is not None or (path / MANIFEST).exists()
        if step is not None and bad.begin is not None:
            is_late = step > bad.begin
        elif not is_whole:
            inner: list[Path] = []
            is_late = _is_late(path, bad, inner)
            late += [] if is_late else inner
        else:
            is_late = _written(path) > bad.since
        verdicts.append(is_late)
        late += [path] if is_late else []
    return bool(verdicts) and all(verdicts)


def _entries(folder: Path) -> Iterable[Path]:
    pointers = _pointers(folder)
    return [path for path in _shown(folder) if not is_beside(path.name) and path not in pointers]


def _shown(folder: Path) -> list[Path]:
    with suppress(OSError):
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    return []


def _pointers(folder: Path) -> dict[Path, Path]:
    """Return the links and small files of a folder that lead to an entry of it, each with the entry."""
    paths = [path for path in _shown(folder) if path.name != NEWEST]
    names = {path.name for path in paths}
    numbers = {int(match[1]): path.name for path in paths if (match := _NUMBER.search(path.name))}
    found = {}
    for path in paths:
        with suppress(OSError, ValueError):
            if path.is_symlink():
                target: str | None = os.readlink(path)  # noqa: PTH115 - the text as it is
            elif not path.is_file() or path.lstat().st_size > _POINTER_BYTES:
                continue
            else:
                text = path.read_text().strip()
                target = numbers.get(int(text)) if text.isdecimal() else text
            if target in names and target != path.name:
                found[path] = folder / target
    return found


def _lead_back(path: Path, suffix: str, *, is_folder: bool) -> None:
    """Have a link or a small file lead to the newest checkpoint like the one that was set aside; without one, it goes.

    Nothing is lost by that: it held a name alone.
    """
    entries = [each for each in _entries(path.parent) if each != path and not each.is_symlink()]
    like = [each for each in entries if (each.suffix, each.is_dir()) == (suffix, is_folder)]
    with suppress(OSError):
        if not like:
            path.unlink()
            return
        new = max(like, key=_written).name
        if path.is_symlink():
            beside = path.with_name(f".{path.name}.new")
            beside.unlink(missing_ok=True)
            beside.symlink_to(new)
            beside.rename(path)
            return
        text = path.read_text()
        number = _NUMBER.search(new)
        if text.strip().isdecimal() and number is not None:
            new = str(int(number[1]))
        write_whole(path, text.replace(text.strip(), new).encode(), mode=0o666, synced=True)


def _written(path: Path) -> float:
    with suppress(OSError):
        # Files within a checkpoint get their last bytes before it is complete.
        return max(file.lstat().st_mtime for file in ([*path.rglob("*")] if path.is_dir() else []) or [path])
    return 0.0


def _with_steps(folder: Path, late: list[Path]) -> list[tuple[int, Path]]:
    """Return the checkpoints of a folder that are not late, with their steps."""
    left = [(_step_of(path, is_folder=path.is_dir()), path) for path in _entries(folder) if path not in late]
    return [(step, path) for step, path in left if step is not None]


def _step_of(path: Path, *, is_folder: bool) -> int | None:
    """Return the number of steps behind which a checkpoint was written, where it says so."""
    if is_folder and (path / MANIFEST).exists():
        with suppress(ParallelError):
            extra = read_manifest(path).extra.get("extra")
            step = extra.get("step") if isinstance(extra, dict) else None
            return step if type(step) is int else None
    match = _STEP["folder"].fullmatch(path.name) if is_folder else _STEP["file"].search(path.name)
    return int(match[1]) if match else None


def _set_aside(path: Path) -> bool:
    """Give a checkpoint a name that nobody looks for; False where another host has done so."""
    number = 1
    while (target := path.with_name(f".{path.name}.{number}{_SET_ASIDE}")).exists():
        number += 1
    with suppress(OSError):
        path.rename(target)
        return True
    return False


def _correct_newest(folder: Path) -> None:
    """Have the file `newest` name the newest checkpoint that is left."""
    if (tag := newest_tag(folder)) is None or (folder / tag).exists():
        return
    left = []
    for path in _entries(folder):
        with suppress(ParallelError):
            left.append((read_manifest(path).time, path.name))
    with suppress(OSError):
        if left:
            note_newest(folder, max(left)[1])
        else:
            (folder / NEWEST).unlink()
