"""Questions in SQuAD v1.1's JSON: data / paragraphs / qas, each answer a text and where it begins in the context."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.data import DataError


@dataclass(frozen=True)
class Question:
    """`answers` are (first character, text) in the context; the first one is learnt, any of them is right."""

    id: str
    text: str
    context: str
    answers: tuple[tuple[int, str], ...]


def read(folder: Path) -> list[Question]:
    """Read all .json files of a channel. Raises `DataError` for what is wrong, and where there is no question."""
    found = [question for path in sorted(folder.glob("*.json")) for question in _in_file(path)]
    if not found:
        raise DataError(f"{folder}: no questions in its .json files")
    return found


def _in_file(path: Path) -> list[Question]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: no JSON: {error}") from None
    questions = []
    for article, entry in enumerate(_field(content, "data", list, path, "")):
        where = f"data[{article}]"
        for number, paragraph in enumerate(_field(entry, "paragraphs", list, path, where)):
            place = f"{where}.paragraphs[{number}]"
            context = _field(paragraph, "context", str, path, place)
            for index, asked in enumerate(_field(paragraph, "qas", list, path, place)):
                questions.append(_question(asked, context, path, f"{place}.qas[{index}]"))
    return questions


def _question(asked: Any, context: str, path: Path, place: str) -> Question:
    answers = []
    for index, answer in enumerate(_field(asked, "answers", list, path, place)):
        where = f"{place}.answers[{index}]"
        begin, text = _field(answer, "answer_start", int, path, where), _field(answer, "text", str, path, where)
        if not text or context[begin : begin + len(text)] != text:
            raise DataError(
                f"{path}: {where}: {text[:40]!r} is not what the context has from character {begin} on:"
                f" {context[begin : begin + len(text)][:40]!r}"
            )
        answers.append((begin, text))
    if not answers:
        raise DataError(f"{path}: {place}.answers is empty: SQuAD v1.1 answers every question")
    return Question(
        _field(asked, "id", str, path, place), _field(asked, "question", str, path, place), context, tuple(answers)
    )


def _field(entry: Any, name: str, kind: type, path: Path, place: str) -> Any:
    value = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(value, kind):
        raise DataError(f"{path}: {place + '.' if place else ''}{name} is missing, or no {kind.__name__}")
    return value
