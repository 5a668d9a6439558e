"""Reader of SQuAD v1.1's JSON (data / paragraphs / qas). Each answer is a text and its offset in the context."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.data import DataError


@dataclass(frozen=True)
class Question:
    """A question with its answers as (offset, text). Training uses the first answer; scoring accepts all of them."""

    id: str
    text: str
    context: str
    answers: tuple[tuple[int, str], ...]


def read(folder: Path) -> list[Question]:
    """Read all .json files of a channel. Raises `DataError` for a wrong entry, and for a folder without questions."""
    questions = [question for path in sorted(folder.glob("*.json")) for question in _in_file(path)]
    if not questions:
        raise DataError(f"{folder}: no questions in its .json files")
    return questions


def _in_file(path: Path) -> list[Question]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from None
    questions = []
    for article, entry in enumerate(_field(content, "data", list, path, "")):
        article_key = f"data[{article}]"
        for number, paragraph in enumerate(_field(entry, "paragraphs", list, path, article_key)):
            key = f"{article_key}.paragraphs[{number}]"
            context = _field(paragraph, "context", str, path, key)
            for index, item in enumerate(_field(paragraph, "qas", list, path, key)):
                questions.append(_question(item, context, path, f"{key}.qas[{index}]"))
    return questions


def _question(item: Any, context: str, path: Path, key: str) -> Question:
    """Check one entry of `qas`. `key` is the entry's path in the file, for messages."""
    answers = []
    for index, answer in enumerate(_field(item, "answers", list, path, key)):
        answer_key = f"{key}.answers[{index}]"
        begin = _field(answer, "answer_start", int, path, answer_key)
        text = _field(answer, "text", str, path, answer_key)
        # A wrong offset would train the model on a wrong answer without any other sign.
        if not text or context[begin : begin + len(text)] != text:
            raise DataError(
                f"{path}: {answer_key}: {text[:40]!r} is not the context's text from character {begin} on:"
                f" {context[begin : begin + len(text)][:40]!r}"
            )
        answers.append((begin, text))
    if not answers:
        raise DataError(f"{path}: {key}.answers is empty: SQuAD v1.1 answers every question")
    return Question(
        _field(item, "id", str, path, key), _field(item, "question", str, path, key), context, tuple(answers)
    )


def _field(entry: Any, name: str, kind: type, path: Path, key: str) -> Any:
    """Return a field of an entry. Raises `DataError` if it is missing or has another type."""
    value = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(value, kind):
        raise DataError(f"{path}: {key + '.' if key else ''}{name} is missing, or is not of type {kind.__name__}")
    return value
