"""Read a failure back from the JSON of `/opt/ml/output/failure.json`, or from its text, all that a service keeps."""

from __future__ import annotations

import json
import re
from typing import Any

from herringbone_contract.constants import MAX_FAILURE_CHARS
from herringbone_contract.errors import ContractError
from herringbone_contract.failure import Failure, Frame
from herringbone_contract.faults.bad_steps import parse_bad_steps

# Not compiled here: every supervisor imports this module, and few jobs fail.
_HEAD = r"(?:rank (?P<rank>[0-9]{1,9}) on (?P<rank_host>\S+)|(?P<job>the job)|(?P<host>[A-Za-z0-9-]+)): (?P<event>.*)"
_DEATH = r"exit code (?P<code>[0-9]{1,9})(?:, killed by SIG\w+)?"
_WITH_EXCEPTION = rf"(?P<exception>[A-Za-z_][\w.]*)(?:: (?P<message>.*))? \({_DEATH}\)"
_WITHOUT_EXCEPTION = rf"{_DEATH}(?:: (?P<message>.*))?"
_FRAME = r"  at (?P<file>.+?):(?P<line>[0-9]{1,9}) in (?P<function>[^:]+)(?:: (?P<source>.*))?"


def parse_failure(text: str | bytes) -> Failure:
    """Read a record that `Failure.to_json` wrote. Raises `ContractError` for any other text."""
    try:
        raw: dict[str, Any] = json.loads(text)
        raw["frames"] = tuple(Frame(**frame) for frame in raw["frames"])
        raw["log_tail"] = tuple(raw["log_tail"])
        raw["bad"] = parse_bad_steps(raw.get("bad"))
        failure = Failure(**raw)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ContractError(f"failure.json cannot be read: {error!r}") from error
    if not _is_typed(failure):
        raise ContractError("failure.json cannot be read: a member has a value of another type")
    return failure


def words_of(content: bytes) -> str:
    """Return what a script wrote into `/opt/ml/output/failure`, as far as SageMaker keeps it, with secrets masked.

    >>> words_of(b"no data: HF_TOKEN=abc\\n")
    'no data: HF_TOKEN=******'
    """
    # Few scripts write the file.
    from herringbone_contract.masking import masked_text

    return masked_text(content.decode("utf-8", "replace")[:MAX_FAILURE_CHARS].strip())


def with_words(failure: Failure, words: str) -> Failure:
    """Return the failure of a rank with the words that its script wrote as the reason.

    >>> with_words(Failure(exit_code=3, exception="SystemExit", message="3"), "no data").what
    'exit code 3: no data'
    """
    if not words:
        return failure
    # The exit code says as much.
    exits = failure.exception in ("SystemExit", "os._exit")
    rest = "" if exits or failure.message in words else f" ({failure.message})"
    return failure._replace(exception="" if exits else failure.exception, message=words + rest)


def _is_typed(failure: Failure) -> bool:
    numbers = [failure.exit_code, *([] if failure.rank is None else [failure.rank])]
    texts = [*([] if failure.host is None else [failure.host]), failure.exception, failure.message, failure.fault]
    texts += failure.log_tail
    for frame in failure.frames:
        numbers.append(frame.line)
        texts += [frame.file, frame.function, frame.source]
    # Not isinstance: JSON's true is an int in Python.
    return all(type(number) is int for number in numbers) and all(isinstance(text, str) for text in texts)


def parse_summary(text: str) -> Failure | None:
    """Read a text that `Failure.render` wrote; return None for any other text.

    >>> parse_summary("rank 1 on algo-2: ValueError: bad batch (exit code 1)").rank
    1

    Frames and log lines that a `limit` dropped stay lost.
    """
    # From the end: a message may have several lines, and only the log and the frames are marked.
    lines = text.split("\n")
    tail: list[str] = []
    while len(lines) > 1 and lines[-1].startswith("  | "):
        tail.insert(0, lines.pop()[4:])
    frames: list[Frame] = []
    while len(lines) > 1 and (match := re.fullmatch(_FRAME, lines[-1])):
        lines.pop()
        frames.insert(0, Frame(match["file"], int(match["line"]), match["function"], match["source"] or ""))
    head = re.fullmatch(_HEAD, "\n".join(lines), re.S)
    # An exit code comes first or last; a message of several lines is why the patterns use re.S.
    event = head and (
        re.fullmatch(_WITHOUT_EXCEPTION, head["event"], re.S) or re.fullmatch(_WITH_EXCEPTION, head["event"], re.S)
    )
    if head is None or event is None:
        return None
    return Failure(
        host=head["rank_host"] or head["host"],
        rank=None if head["rank"] is None else int(head["rank"]),
        exit_code=int(event["code"]),
        exception=event.groupdict().get("exception", ""),
        message=event["message"] or "",
        frames=tuple(frames),
        log_tail=tuple(tail),
    )
