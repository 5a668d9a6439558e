"""Cut a long context into overlapping windows, and choose the best answer from all of them. Pure.

[CLS] question [SEP] a part of the context [SEP] [PAD] ...
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from common.tokens import Marks, Token


@dataclass(frozen=True)
class Window:
    """A question and a part of its context, as model inputs.

    `tokens` and `kinds` (0 for the question, 1 for the context) have the full length. `spans` are the character offsets
    of the context's tokens, and None for all others. `begin` and `end` are the indices of the answer's first and last
    token, or 0, the index of [CLS], if the window does not contain the whole answer.
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
    """Return the windows of a question. Each window begins `stride` tokens of the context after the previous one.

    `answer` is the offset of its first character and the offset behind its last one. The question is cut to `query`
    tokens. Raises `ValueError` if a window has no room for the context.
    """
    head = [marks.cls, *(number for number, _, _ in question[:query]), marks.sep]
    room = length - len(head) - 1
    if room < 1 or stride < 1:
        raise ValueError(
            f"a window of {length} tokens with a question of {len(head)} tokens and a stride of {stride}: the context"
            " needs at least one token, and the stride must be at least 1"
        )
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
                *_answer_tokens(part, answer, len(head)),
            )
        )
        if first + room >= len(context):
            return windows
        first += stride


def _answer_tokens(part: Sequence[Token], answer: tuple[int, int], offset: int) -> tuple[int, int]:
    """Return the indices of the answer's first and last token, or (0, 0) if `part` does not have the whole answer."""
    inside = [index for index, (_, begin, end) in enumerate(part) if begin < answer[1] and end > answer[0]]
    whole = bool(inside) and part[inside[0]][1] <= answer[0] and part[inside[-1]][2] >= answer[1]
    return (inside[0] + offset, inside[-1] + offset) if whole else (0, 0)


def best(
    scored: Sequence[tuple[Window, Sequence[float], Sequence[float]]], context: str, *, n_best: int, longest: int
) -> str:
    """Return the answer with the highest sum of its begin and end scores, over all windows of a question.

    Each window contributes its `n_best` begins and ends. An answer has at most `longest` tokens. Returns "" if no
    combination is an answer.
    """
    highest, text = float("-inf"), ""
    for window, begins, ends in scored:
        spans = {index: span for index, span in enumerate(window.spans) if span is not None}
        for begin in heapq.nlargest(n_best, spans, key=begins.__getitem__):
            for end in heapq.nlargest(n_best, spans, key=ends.__getitem__):
                score = begins[begin] + ends[end]
                if begin <= end < begin + longest and score > highest:
                    highest, text = score, context[spans[begin][0] : spans[end][1]]
    return text
