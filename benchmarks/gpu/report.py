"""The report of `run.py`: what each part ended as and printed, as JSON and as a table. Pure.

report = Report(machine={"device": "NVIDIA H200", "torch": "2.13.0"}, dry=False)
report.add(Outcome("sums", Status.OK, 12.0, result={"ratio": 1.2}))
report.json(), report.markdown()
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Status(Enum):
    """The ends of a part."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"
    OUT_OF_TIME = "ran out of time"
    INTERRUPTED = "interrupted"


GOOD = (Status.OK, Status.SKIPPED)


@dataclass(frozen=True)
class Outcome:
    """The end of one part: its result where it printed one, the reason and the last lines where it did not end well."""

    part: str
    status: Status
    seconds: float
    result: Mapping[str, Any] | None = None
    reason: str = ""
    last_lines: Sequence[str] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the members that have a value."""
        members = {
            "part": self.part,
            "status": self.status.value,
            "seconds": round(self.seconds, 1),
            "result": self.result,
            "reason": self.reason,
            "last_lines": list(self.last_lines),
        }
        return {name: value for name, value in members.items() if value not in (None, "", [])}


def result_of(output: str) -> dict[str, Any] | None:
    """Return the last line of a program's output that is a JSON object; None where no line is one.

    >>> result_of('step 1\\n{"ratio": 1.5}\\nNCCL INFO bye\\n')
    {'ratio': 1.5}
    """
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            try:
                return dict(json.loads(line))
            except ValueError:
                continue
    return None


def judge(part: str, code: int, seconds: float, output: str, *, lines: int = 20) -> Outcome:
    """Return the outcome of a program that ended by itself with this exit code and output."""
    result = result_of(output)
    if code:
        last = [line for line in output.splitlines() if line.strip()][-lines:]
        return Outcome(part, Status.FAILED, seconds, result, f"exit code {code}", last)
    if result is None:
        return Outcome(part, Status.FAILED, seconds, None, "it printed no result", output.splitlines()[-lines:])
    # Counts of tests have a number under this name.
    if isinstance(result.get("skipped"), str):
        return Outcome(part, Status.SKIPPED, seconds, reason=str(result["skipped"]))
    return Outcome(part, Status.OK, seconds, result)


@dataclass
class Report:
    """The facts about the machine, and the outcomes so far."""

    machine: Mapping[str, Any]
    dry: bool
    outcomes: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Append the outcome of the next part."""
        self.outcomes.append(outcome)

    @property
    def is_good(self) -> bool:
        """True if each part ended well or was skipped, and not all were skipped."""
        states = [outcome.status for outcome in self.outcomes]
        return all(state in GOOD for state in states) and Status.OK in states

    def as_dict(self) -> dict[str, Any]:
        """Return the whole report."""
        parts = [outcome.as_dict() for outcome in self.outcomes]
        return {"machine": dict(self.machine), "dry": self.dry, "good": self.is_good, "parts": parts}

    def json(self) -> str:
        """Return the report as indented JSON."""
        return json.dumps(self.as_dict(), indent=2) + "\n"

    def markdown(self) -> str:
        """Return the report as a table of parts, one of figures, and the last lines of the parts that failed."""
        title = "# A dry run on the CPU: these are no figures of a device" if self.dry else "# On CUDA devices"
        facts = [f"- {name}: {_text(value)}" for name, value in self.machine.items()]
        rows = [
            f"| {outcome.part} | {outcome.status.value} | {outcome.seconds:.1f} | {_text(outcome.reason)} |"
            for outcome in self.outcomes
        ]
        figures = [
            f"| {outcome.part} | {name} | {_text(value)} |"
            for outcome in self.outcomes
            for name, value in flat(outcome.result or {})
        ]
        lines = [title, "", *facts, "", "| part | end | seconds | reason |", "|---|---|---|---|", *rows, ""]
        lines += ["| part | figure | value |", "|---|---|---|", *figures, ""]
        for outcome in self.outcomes:
            if outcome.last_lines:
                lines += [f"## The last lines of {outcome.part}", "", "```text", *outcome.last_lines, "```", ""]
        return "\n".join(lines)


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each figure of a nested result, with the names that lead to it.

    >>> list(flat({"bert": {"ms": 3.5}, "sums": [{"mb": 1}, {"mb": 4}]}))
    [('bert ms', 3.5), ('sums 0 mb', 1), ('sums 1 mb', 4)]
    """
    if isinstance(value, Mapping):
        pairs: Sequence[tuple[str, Any]] = [(str(key), inner) for key, inner in value.items()]
    elif isinstance(value, list) and any(isinstance(inner, (Mapping, list)) for inner in value):
        pairs = [(str(index), inner) for index, inner in enumerate(value)]
    else:
        yield name, value
        return
    for key, inner in pairs:
        yield from flat(inner, f"{name} {key}".strip())


def _text(value: Any) -> str:
    """Return a value as it is shown in a cell."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return str(value).replace("|", "\\|").replace("\n", " ")
