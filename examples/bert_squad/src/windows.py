"""A long context as windows that overlap, and the best answer out of all of them. Pure.

[CLS] question [SEP] a part of the context [SEP] [PAD] ...
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from common.tokens import Marks, Token


@dataclass(frozen=True)
class Window:
    """`tokens` and `kinds` (0 question, 1 context) fill the length; `spans` are of the context's characters, or None.

    `begin` and `end` are the places of the first and last token of the answer, 0 (that of [CLS]) where it lies outside.
    """

    tokens: list[int]
    kinds: list[int]
    spans: list[tuple[int, int] | None]
    begin: int
    end: int


def cut(
    question: Sequence[Token],
    context: Sequence[Token],
    answer: tuple[int, int],
    *,
    marks: Marks,
    length: int,
    stride: int,
    query: int,
) -> list[Window]:
    """Return the windows of a question; each begins `stride` tokens of the context after the one before.

    `answer` is its first character and the one behind its last; of the question at most `query` tokens are kept.
    """
    head = [marks.cls, *(number for number, _, _ in question[:query]), marks.sep]
    room = length - len(head) - 1
    if room < 1 or stride < 1:
        raise ValueError(f"a window of {length} has no room behind a question of {len(head)}, or a stride of {stride}")
    windows = []
    first = 0
    while True:
        part = context[first : first + room]
        padding = length - len(head) - len(part) - 1
        windows.append(
            Window(
                [*head, *(number for number, _, _ in part), marks.sep, *[marks.pad] * padding],
                [0] * len(head) + [1] * (len(part) + 1) + [0] * padding,
                [*[None] * len(head), *((begin, end) for _, begin, end in part), *[None] * (padding + 1)],
                *_places(part, answer, len(head)),
            )
        )
        if first + room >= len(context):
            return windows
        first += stride


def _places(part: Sequence[Token], answer: tuple[int, int], offset: int) -> tuple[int, int]:
    inside = [place for place, (_, begin, end) in enumerate(part) if begin < answer[1] and end > answer[0]]
    whole = bool(inside) and part[inside[0]][1] <= answer[0] and part[inside[-1]][2] >= answer[1]
    return (inside[0] + offset, inside[-1] + offset) if whole else (0, 0)


def best(
    scored: Sequence[tuple[Window, Sequence[float], Sequence[float]]], context: str, *, n_best: int, longest: int
) -> str:
    """Return the text with the highest sum of a begin's and an end's score over all windows of a question.

    Of each window the `n_best` begins and ends are tried; an answer has at most `longest` tokens. "" where none fits.
    """
    found, text = float("-inf"), ""
    for window, begins, ends in scored:
        spans = {place: span for place, span in enumerate(window.spans) if span is not None}
        for begin in heapq.nlargest(n_best, spans, key=begins.__getitem__):
            for end in heapq.nlargest(n_best, spans, key=ends.__getitem__):
                score = begins[begin] + ends[end]
                if begin <= end < begin + longest and score > found:
                    found, text = score, context[spans[begin][0] : spans[end][1]]
    return text
