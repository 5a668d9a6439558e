"""Answer questions about memory, time and money of a measured script.

Usage: python -m herringbone_parallel.predict < question.json > answer.json

Standard input is a `Question` of the contract as JSON, standard output an `Answer`. A question that cannot be answered
gives exit code 2 and one line on standard error.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

import msgspec

from herringbone_contract.errors import DistributionError, ParallelError
from herringbone_contract.prediction.answer import Answer
from herringbone_contract.prediction.question import Question
from herringbone_parallel.core.prediction import measurement as form
from herringbone_parallel.core.prediction.search import answer


def main(source: BinaryIO = sys.stdin.buffer, target: BinaryIO = sys.stdout.buffer) -> int:
    """Read a question, write its answer; return the exit code."""
    try:
        reply = reply_to(source.read())
    except (ParallelError, DistributionError, OSError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    target.write(msgspec.json.encode(reply))
    target.flush()
    return 0


def reply_to(text: bytes) -> Answer:
    """Return the answer to a question in JSON.

    Raises `ParallelError` for text that is no question or names no measurement, `OSError` for a missing file.
    """
    try:
        question = msgspec.json.decode(text, type=Question)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ParallelError(f"standard input is no question: {error}") from error
    measurement = form.parse(Path(question.measurement).read_bytes())
    timings = None if question.timings is None else form.parse_timings(Path(question.timings).read_bytes())
    return answer(question, measurement, timings)


if __name__ == "__main__":
    raise SystemExit(main())
