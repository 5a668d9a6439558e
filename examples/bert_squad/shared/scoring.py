"""SQuAD v1.1's scores of an answer: exact match, and F1 over words, for the most similar right answer. Pure.

The rules are those of Rajpurkar et al., arXiv 1606.05250: ignore case, punctuation, a, an, the, and extra spaces.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def words(text: str) -> list[str]:
    """Return the words of a text that count for the scores.

    >>> words("The  Denver Broncos' 1st,")
    ['denver', 'broncos', '1st']
    """
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def exact_match(predicted: str, answers: Iterable[str]) -> float:
    """Return 1 if one of the answers has the same words in the same order, else 0."""
    return float(any(words(predicted) == words(answer) for answer in answers))


def f1(predicted: str, answers: Iterable[str]) -> float:
    """Return the harmonic mean of precision and recall over words, for the most similar answer."""
    return max((_f1(words(predicted), words(answer)) for answer in answers), default=0.0)


def _f1(predicted: list[str], answer: list[str]) -> float:
    same = sum((Counter(predicted) & Counter(answer)).values())
    if not same:
        return 0.0
    precision, recall = same / len(predicted), same / len(answer)
    return 2 * precision * recall / (precision + recall)
