"""A failure read back from its text: what a service keeps of `/opt/ml/output/failure` becomes the record again.

Apart from `failure`, which every rank imports: it has no use for the patterns.
"""

from __future__ import annotations

import re

from herringbone_contract.failure import Failure, Frame

_WHERE = re.compile(
    r"(?:rank (?P<rank>\d+) on (?P<rank_host>\S+)|(?P<job>the job)|(?P<host>[A-Za-z0-9-]+)): (?P<what>.*)", re.S
)
_DEATH = r"exit code (?P<code>\d+)(?:, killed by SIG\w+)?"
_WITH_EXCEPTION = re.compile(rf"(?P<exception>[A-Za-z_][\w.]*)(?:: (?P<message>.*))? \({_DEATH}\)", re.S)
_WITHOUT = re.compile(rf"{_DEATH}(?:: (?P<message>.*))?", re.S)
_FRAME = re.compile(r"  at (?P<file>.+?):(?P<line>\d+) in (?P<function>[^:]+)(?:: (?P<source>.*))?")


def parse_summary(text: str) -> Failure | None:
    """Read back what `Failure.render` wrote; None for a text that is not of that form.

    >>> parse_summary("rank 1 on algo-2: ValueError: bad batch (exit code 1)").rank
    1

    What a `limit` left out stays out.
    """
    lines = text.split("\n")
    tail: list[str] = []
    while len(lines) > 1 and lines[-1].startswith("  | "):
        tail.insert(0, lines.pop()[4:])
    frames: list[Frame] = []
    while len(lines) > 1 and (found := _FRAME.fullmatch(lines[-1])):
        lines.pop()
        frames.insert(0, Frame(found["file"], int(found["line"]), found["function"], found["source"] or ""))
    where = _WHERE.fullmatch("\n".join(lines))
    what = where and (_WITHOUT.fullmatch(where["what"]) or _WITH_EXCEPTION.fullmatch(where["what"]))
    if where is None or what is None:
        return None
    return Failure(
        host=where["rank_host"] or where["host"],
        rank=None if where["rank"] is None else int(where["rank"]),
        exit_code=int(what["code"]),
        exception=what.groupdict().get("exception", ""),
        message=what["message"] or "",
        frames=tuple(frames),
        log_tail=tuple(tail),
    )
