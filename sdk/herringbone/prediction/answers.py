"""Ask the predictor, which runs in a process of its own because it needs numpy; keep its answers."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from herringbone.prediction.cache import MOST_ANSWERS, prune, used, write
from herringbone_contract.errors import MeasurementError
from herringbone_contract.masking import printable
from herringbone_contract.prediction.answer import Answer
from herringbone_contract.prediction.question import Question

# `-m` would look for modules in the current folder first.
_START = (
    "import sys; sys.path = [*filter(None, sys.path)]; from herringbone_parallel.predict import main; sys.exit(main())"
)
PREDICT = (sys.executable, "-c", _START)
_SECONDS = 120.0
_LAST_LINES = 12


class Predictor:
    """Answers questions with the program `words`.

    >>> Predictor().ask(question).planned.refusal                    # doctest: +SKIP

    An answer is kept next to its measurement: the same question costs a few milliseconds the second time.
    """

    def __init__(self, words: Sequence[str] = PREDICT) -> None:
        self._words = tuple(words)

    def ask(self, question: Question) -> Answer:
        """Return the answer. Raises `MeasurementError` with the predictor's own words when it has none."""
        text = msgspec.json.encode(question)
        # Operations that were timed on a busy machine are timed again.
        timed = b"" if question.timings is None else Path(question.timings).read_bytes()
        mark = hashlib.sha256(b"\0".join((text, _release(), timed))).hexdigest()[:32]
        kept = Path(question.measurement).with_name(f"{mark}.answer")
        # None yet, or of another release.
        with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            known = msgspec.json.decode(kept.read_bytes(), type=Answer)
            used(kept)
            return known
        answer = self._run(text)
        # A full disk costs the copy alone.
        with contextlib.suppress(OSError):
            write(kept, msgspec.json.encode(answer).decode())
            prune(kept.parent, "*.answer", MOST_ANSWERS)
        return answer

    def _run(self, text: bytes) -> Answer:
        try:
            done = subprocess.run(self._words, input=text, capture_output=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise MeasurementError(
                f"the predictor gave no answer within {_SECONDS:.0f} s; compare fewer layouts (--limit)"
            ) from None
        if done.returncode != 0:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            if any(line.startswith("ModuleNotFoundError: No module named 'numpy'") for line in lines):
                raise MeasurementError(f"{self._words[0]} has no numpy, which predictions need: pip install numpy")
            raise MeasurementError("no prediction: " + "\n".join(map(printable, lines[-_LAST_LINES:])))
        try:
            return msgspec.convert(_printable(msgspec.json.decode(done.stdout)), Answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise MeasurementError(f"no prediction: the predictor's answer cannot be read: {error}") from None


def _printable(value: Any) -> Any:
    """Return JSON whose texts have no control characters: names in a measurement are the script's, and it may lie."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [_printable(item) for item in value]
    return {name: _printable(item) for name, item in value.items()} if isinstance(value, dict) else value


def _release() -> bytes:
    """Return a mark of the predictor's code: an answer of another release is another answer."""
    parallel, contract = map(_folders, ("herringbone_parallel", "herringbone_contract"))
    # The predictor imports nothing else of ours: `core` decides partitions and simulates pipelines as jobs do, and the
    # contract has the rules by which layouts are refused.
    return mark_of([*(Path(folder, "core") for folder in parallel), *contract])


def _folders(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    return [Path(folder) for folder in (spec.submodule_search_locations if spec is not None else None) or ()]


def mark_of(folders: Iterable[Path]) -> bytes:
    """Return a text that differs whenever a Python file at any depth of the folders is changed, added or removed."""
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    return "".join(f"{path} {path.stat().st_mtime_ns} " for path in files).encode()
