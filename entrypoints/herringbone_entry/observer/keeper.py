"""Removes the job's checkpoints that `keep_checkpoints` does not ask for; `keeping` has the rule.

    settled, unchanged for two looks --verify, in a thread--> whole --the rule--> hidden by a rename --> removed
                                                                |
    the first rank's host decides, since it has the metrics ----+--> an event, which its supervisor passes to the others

Hosts may share the folder, or have folders of their own with the files of their ranks. The others therefore remove what
the first one names, where they have it and a newer whole checkpoint. A ledger in the folder survives this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePath

import msgspec

from herringbone_contract import safe_tree
from herringbone_contract.checkpoint.keeping import SUFFIXES, Candidate, Keep, number_of, removable
from herringbone_contract.checkpoint.ledger import ledger_name, read_ledgers
from herringbone_contract.checkpoint.manifest import MANIFEST, REMOVED
from herringbone_contract.checkpoint.structure import is_complete
from herringbone_contract.checkpoint.verification import read_manifest, verify
from herringbone_contract.errors import ParallelError
from herringbone_contract.events.format import MAX_NAME_CHARS, Event, Point
from herringbone_contract.files import write_whole
from herringbone_contract.masking import printable
from herringbone_entry.observer.checkpoints import Checkpoints
from herringbone_entry.observer.settings import Settings

_TRAINER = re.compile(r"checkpoint-\d+")
_TRAINER_STATE = "trainer_state.json"
_MAX_STATE_BYTES = 1 << 26
# A file that names a checkpoint, such as `newest` or DeepSpeed's `latest`, holds one word.
_MAX_POINTER_BYTES = 1024
# The step of a checkpoint, where its name has one: Hugging Face's Trainer calls it `checkpoint-N`.
_STEP = re.compile(r"(?<![a-z])(?:step|iter|iteration)[-_=.]?(\d+)|^checkpoint-(\d+)$", re.IGNORECASE)
# Files get the time of the kernel's last tick, which may be before that of a metric.
_TICK_SECONDS = 0.01
_MAX_VALUES = 100_000
_MAX_REMOVED = 1000


class Keeper(Checkpoints):
    """Reports the checkpoints of a folder, and keeps those that the job asks for; the host that `leads` decides.

    `complain` takes a line for the log.
    """

    def __init__(self, settings: Settings, complain: Callable[[str], None]) -> None:
        super().__init__(settings.checkpoints)
        self._keep, self._host, self._leads = msgspec.convert(settings.keep, Keep), settings.host, settings.leads
        self._ledger_name, self._complain = ledger_name(settings.job, settings.host), complain
        # Of all hosts: a retry over SSH brings the checkpoints of all into each folder.
        self._ledger = read_ledgers(settings.checkpoints, settings.job)
        self._ledger.since = self._ledger.since or settings.started
        self._write_ledger()
        # The ranks began a second before this process, and an earlier attempt may have ended before the next look.
        since, whole = self._ledger.since * 1e9, self._ledger.whole
        self._known = {name: mark for name, mark in self._known.items() if mark[1] < since or name in whole}
        # The values of the metric, in the order of arrival.
        self._points: list[Point] = []
        # Entries that have settled, and removals of other hosts, since the thread was started.
        self._settled: set[str] = set()
        self._ordered: dict[str, str] = {}
        # The thread owns all members below while it runs.
        self._thread = threading.Thread()
        self._pending: set[str] = set()
        self._orders: dict[str, str] = {}
        self._removals: list[Event] = []
        # The numbers of files of the checkpoints that are several files; other attempts may have other ranks.
        self._files: dict[str, int] = {}
        self._started = settings.started
        # The best checkpoint by Hugging Face's Trainer, which it loads at its end.
        self._best: str | None = None
        self._said: set[str] = set()

    def heard(self, points: Sequence[Point]) -> None:
        self._points += [point for point in points if point.name == self._keep.metric]
        del self._points[:-_MAX_VALUES]

    def obey(self, order: Mapping[str, str]) -> None:
        self._ordered[order["unit"]] = order["after"]

    def _news(self, now: float, *, ended: bool) -> list[Event | Point]:
        events = super()._news(now, ended=ended)
        self._settled.update(self._reported)
        if ended and self._thread.ident is not None:
            self._thread.join()
        if not self._thread.is_alive():
            self._pending |= self._settled
            self._orders |= self._ordered
            self._settled, self._ordered = set(), {}
            if self._pending or self._orders:
                self._thread = threading.Thread(target=self._work, args=(list(self._points),), daemon=True)
                self._thread.start()
        return events

    def poll(self, now: float) -> list[Event | Point]:
        # Once a second, not once a look: a host that is lost tells nobody what it has removed.
        return [*super().poll(now), *self._taken_removals()]

    def last(self, now: float) -> list[Event | Point]:
        events = super().last(now)
        if self._thread.ident is not None:
            self._thread.join()
        return [*events, *self._taken_removals()]

    def _taken_removals(self) -> list[Event]:
        if self._thread.is_alive():
            return []
        removals, self._removals = self._removals, []
        return removals

    def _work(self, points: list[Point]) -> None:
        try:
            with safe_tree.folder(self._folder) as top:
                # Names that are no UTF-8 would be in no ledger.
                times = self._times(top, filter(str.isprintable, self._look()))
                self._pending &= times.keys()
                units = _units(top, times)
                self._verify(top, times, units)
                self._rate(times, points)
                self._remove_all(top, times, units)
        except Exception as error:  # noqa: BLE001 - a folder of others; the job goes on, and nothing more is removed now
            self._say(f"{type(error).__name__}: {error}")

    def _times(self, top: int, names: Iterable[str]) -> dict[str, int]:
        """Return when entries were last written: folders with their newest file, since a copy has another folder."""
        times: dict[str, int] = {}
        for name in names:
            with contextlib.suppress(OSError):
                state = os.lstat(name, dir_fd=top)
                times[name] = state.st_mtime_ns
                if stat.S_ISDIR(state.st_mode):
                    with safe_tree.folder(top, name) as inside:
                        files = [entry.state.st_mtime_ns for entry in safe_tree.walk(inside) if entry.kind == "file"]
                    times[name] = max(files, default=0)
        return times

    def _verify(self, top: int, times: Mapping[str, int], units: Mapping[str, list[str]]) -> None:
        ledger = self._ledger
        ledger.written.update({name: times[name] for name in self._pending})
        if not self._leads:
            # Every host would read the whole checkpoint: only those that are asked for.
            self._pending = {name for unit in self._orders.values() for name in units.get(unit, ())}
            self._pending &= ledger.written.keys()
        known = {name for names in units.values() for name in names}
        for name in sorted(self._pending):
            if name not in known:
                if name.endswith(SUFFIXES) or Path(self._folder, name).is_dir():
                    self._say(f"{name} is no checkpoint by its name or its content, so it is not removed")
            elif ledger.whole.get(name) != times[name]:
                if self._is_whole(top, name):
                    ledger.whole[name] = times[name]
                else:
                    self._say(f"{name} is not whole, or of a form that cannot be verified; it does not count")
                    if not safe_tree.exists(top, f"{name}/{MANIFEST}"):
                        # It may grow for longer than two looks; ours is complete or absent, and long to read.
                        continue
            self._pending.discard(name)

    def _rate(self, times: Mapping[str, int], points: list[Point]) -> None:
        """Note the metric's value of each checkpoint: that of its step, or the last one before it was written."""
        values, by_step = self._ledger.values, {point.step: point.value for point in points}
        points.sort(key=lambda point: point.time)
        for name in self._ledger.whole.keys() & times.keys():
            match = _STEP.search(name)
            step = int(match[1] or match[2]) if match is not None else None
            place = bisect_right(points, times[name] / 1e9 + _TICK_SECONDS, key=lambda point: point.time)
            if step is not None and step in by_step:
                values[name] = by_step[step]
            elif place:
                values[name] = points[place - 1].value

    def _remove_all(self, top: int, times: Mapping[str, int], units: Mapping[str, list[str]]) -> None:
        ledger = self._ledger
        candidates = {unit: self._candidate(unit, names, times) for unit, names in units.items()}
        self._files = {
            unit: len(units[unit])
            for unit, one in candidates.items()
            if unit[0] == "#" and one.is_whole and one.time >= self._started
        }
        chosen = self._chosen(candidates, units, _named(top) | {self._best})
        ledger.removed |= {name: units[after] for unit, after in chosen for name in units[unit]}
        # Before the renames: whoever goes on after a kill knows what they have hidden.
        self._write_ledger()
        for unit, after in chosen:
            if not self._hide(top, units[unit], times):
                continue
            path, successor = (", ".join(units[one])[:MAX_NAME_CHARS] for one in (unit, after))
            event = {"kind": "removed", "t": time.time(), "path": path, "successor": successor}
            self._removals.append({**event, "unit": unit, "after": after})
        self._sweep(top)
        for facts in (ledger.written, ledger.whole, ledger.values):
            for name in facts.keys() - times.keys():
                del facts[name]
        for name in list(ledger.removed)[:-_MAX_REMOVED]:
            del ledger.removed[name]
        self._write_ledger()

    def _write_ledger(self) -> None:
        # A full disk, or no folder yet: the next one has it all.
        with contextlib.suppress(OSError):
            write_whole(Path(self._folder, self._ledger_name), msgspec.json.encode(self._ledger), mode=0o666)

    def _candidate(self, unit: str, names: list[str], times: Mapping[str, int]) -> Candidate:
        written, whole, values = self._ledger.written, self._ledger.whole, self._ledger.values
        # The optimizer's file may follow the model's much later.
        fewest = min((count for one, count in self._files.items() if one != unit), default=1) if unit[0] == "#" else 1
        return Candidate(
            unit,
            max(times[name] for name in names) / 1e9,
            is_ours=all(written.get(name) == times[name] for name in names),
            is_whole=len(names) >= fewest and all(whole.get(name) == times[name] for name in names),
            value=next((value for name in names if (value := values.get(name)) is not None), None),
        )

    def _chosen(
        self, candidates: Mapping[str, Candidate], units: Mapping[str, list[str]], named: set[str | None]
    ) -> list[tuple[str, str]]:
        """Return pairs of a checkpoint to remove and the one for which it goes."""
        whole = [one for one in candidates.values() if one.is_ours and one.is_whole]
        free = {unit for unit, names in units.items() if named.isdisjoint(names)}
        if self._leads:
            if not whole:
                return []
            after = max(whole, key=lambda one: (one.time, one.name)).name
            if self._keep.best is not None and all(one.value is None for one in whole) and len(whole) > 1:
                self._say(f"no value of {self._keep.metric!r} was logged so far, so nothing is removed")
            marked = [one._replace(is_named=one.name not in free) for one in candidates.values()]
            return [(unit, after) for unit in removable(marked, self._keep)]
        chosen = []
        for unit, after in list(self._orders.items()):
            old, new = candidates.get(unit), candidates.get(after)
            if old is None:
                del self._orders[unit]
            elif new is not None and new in whole and old.is_ours and old.time < new.time and unit in free:
                chosen.append((unit, after))
        return chosen

    def _hide(self, top: int, names: list[str], times: Mapping[str, int]) -> bool:
        """Give the entries of a checkpoint hidden names: a script that reads finds all of it, or nothing."""
        # The script may have removed it, or written it anew, since the last look.
        now = self._times(top, names)
        names = [name for name in names if now.get(name) == times[name]]
        try:
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    os.rename(name, f".{name}{REMOVED}", src_dir_fd=top, dst_dir_fd=top)
        except OSError as error:
            self._say(f"{name} cannot be removed: {error.strerror}")
            return False
        return bool(names)

    def _sweep(self, top: int) -> None:
        """Remove what was hidden, also before this process began."""
        for hidden in {f".{name}{REMOVED}" for name in self._ledger.removed} & set(os.listdir(top)):
            # Hosts that share the folder may do so at the same time.
            with contextlib.suppress(OSError):
                safe_tree.remove(top, hidden)

    def _is_whole(self, top: int, name: str) -> bool:
        try:
            if not stat.S_ISDIR(os.lstat(name, dir_fd=top).st_mode):
                return _is_file_whole(top, name)
            if safe_tree.exists(top, f"{name}/{MANIFEST}"):
                return _is_saved_whole(Path(self._folder, name), self._host)
            with safe_tree.folder(top, name) as inside:
                files = [entry.name for entry in safe_tree.walk(inside) if entry.name.endswith((*SUFFIXES, ".bin"))]
                state = json.loads(safe_tree.read_file(inside, _TRAINER_STATE, limit=_MAX_STATE_BYTES))
                is_whole = bool(files) and all(_is_file_whole(inside, file) for file in files)
                os.fsync(inside)
            if is_whole and isinstance(best := state.get("best_model_checkpoint"), str):
                self._best = PurePath(best).name
        except (OSError, ValueError, AttributeError, RecursionError, ParallelError):
            return False
        return is_whole

    def _say(self, text: str) -> None:
        # Once of each kind: a folder may have thousands of such files.
        kind = text.partition(" ")[2]
        if kind not in self._said:
            self._said.add(kind)
            self._complain(f"keep_checkpoints: {printable(text)}")


def _units(top: int, times: Mapping[str, int]) -> dict[str, list[str]]:
    """Return the entries of each checkpoint, which is several files where a script saves several of one step."""
    units: dict[str, list[str]] = {}
    for name in sorted(times):
        with contextlib.suppress(OSError):
            unit: str | None = name
            if not stat.S_ISDIR(os.lstat(name, dir_fd=top).st_mode):
                number = number_of(name)
                unit = number and f"#{number}"
            elif not safe_tree.exists(top, f"{name}/{MANIFEST}") and not (
                _TRAINER.fullmatch(name) and safe_tree.exists(top, f"{name}/{_TRAINER_STATE}")
            ):
                unit = None
            if unit is not None:
                units.setdefault(unit, []).append(name)
    return units


def _named(top: int) -> set[str | None]:
    """Return every part of a path that a link of the folder, or a file of one word in it, leads to."""
    names: set[str | None] = set()
    with os.scandir(top) as entries:
        for entry in entries:
            if entry.is_symlink():
                names.update(PurePath(os.readlink(entry.name, dir_fd=top)).parts)
            elif entry.is_file() and entry.stat().st_size <= _MAX_POINTER_BYTES:
                with contextlib.suppress(OSError, UnicodeDecodeError):
                    words = safe_tree.read_file(top, entry.name, limit=_MAX_POINTER_BYTES).decode().split()
                    names.update(PurePath(words[0]).parts if len(words) == 1 else ())
    return names


def _is_file_whole(top: int, name: str) -> bool:
    with safe_tree.open_file(top, name) as stream:
        # A power failure after the removal of its predecessor must not take this one, too.
        os.fsync(stream.fileno())
        return is_complete(stream)


def _is_saved_whole(path: Path, host: str) -> bool:
    """Verify a checkpoint of our form; files of hosts with folders of their own are theirs to verify."""
    manifest = read_manifest(path)
    problems = verify(path, manifest)
    missing = {problem.file for problem in problems if problem.kind == "missing"}
    elsewhere = {
        owner
        for owner in {file.host for file in manifest.files.values()} - {host}
        if all(name in missing for name, file in manifest.files.items() if file.host == owner)
    }
    return all(
        problem.file in missing and manifest.files[problem.file].host in elsewhere for problem in problems
    ) and any(file.host not in elsewhere for file in manifest.files.values())
