"""Training examples for BERT: pairs of texts with hidden words. The second text follows the first, or does not. Pure.

[CLS] the end of the first text [SEP] the beginning of the second [SEP] [PAD] ...

Source: Devlin et al., arXiv 1810.04805, 3.1 and A.1.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from common.tokens import Marks

# The share of a pair's words that is hidden.
SHARE = 0.15
# The label of a token that is not hidden: torch's cross_entropy ignores -100 by default.
SHOWN = -100


@dataclass
class Corpus:
    """All tokens in one row. Sentence i begins at `sentences[i]`, document d with sentence `documents[d]`.

    The last entry of both is the end. The arrays are flat, because a gigabyte of text has millions of sentences.
    """

    tokens: array[int] = field(default_factory=lambda: array("i"))
    sentences: array[int] = field(default_factory=lambda: array("q", [0]))
    documents: array[int] = field(default_factory=lambda: array("q", [0]))

    def add(self, document: Iterable[Sequence[int]]) -> None:
        """Add a document's sentences, without those that have no token."""
        for sentence in filter(len, document):
            self.tokens.extend(sentence)
            self.sentences.append(len(self.tokens))
        if len(self.sentences) - 1 > self.documents[-1]:
            self.documents.append(len(self.sentences) - 1)


class Pair(NamedTuple):
    """Two ranges of a corpus's tokens. `follows` is true if the second range continues the first."""

    first: int
    first_end: int
    second: int
    second_end: int
    follows: bool


def pair_up(corpus: Corpus, *, length: int, seed: int) -> list[Pair]:
    """Cut the documents into pairs of at most `length` tokens, special tokens included. About half of the pairs follow.

    Each pair takes sentences until they fill the length, and cuts them at a random sentence. The second text is the
    rest, or comes from another document; the next pair then starts with the rest. Raises `ValueError` without another
    document.
    """
    room = length - 3
    if room < 2 or len(corpus.documents) < 3:
        raise ValueError(
            f"pairs need a length of at least 5 and at least 2 documents, not {length} and {len(corpus.documents) - 1}"
        )
    numbers = random.Random(seed)  # noqa: S311  no secret
    start, pairs = corpus.sentences, []
    for document in range(len(corpus.documents) - 1):
        sentence, last = corpus.documents[document], corpus.documents[document + 1]
        while sentence < last:
            end = sentence + 1
            while end < last and start[end] - start[sentence] < room:
                end += 1
            cut = numbers.randint(sentence + 1, end - 1) if end - sentence > 1 else end
            follows = cut < end and numbers.random() < 0.5
            if follows:
                second, second_end, next_sentence = start[cut], start[end], end
            else:
                second, second_end = _from_other_document(corpus, document, numbers)
                next_sentence = cut
            pairs.append(_trimmed(Pair(start[sentence], start[cut], second, second_end, follows), room))
            sentence = next_sentence
    return pairs


def _from_other_document(corpus: Corpus, document: int, numbers: random.Random) -> tuple[int, int]:
    """Return the beginning of a random sentence of another document, and the end of that document."""
    # Draw among all documents but this one: numbers from `document` on shift by one.
    other = numbers.randrange(len(corpus.documents) - 2)
    other += other >= document
    begin = numbers.randrange(corpus.documents[other], corpus.documents[other + 1])
    return corpus.sentences[begin], corpus.sentences[corpus.documents[other + 1]]


def _trimmed(pair: Pair, room: int) -> Pair:
    """Shorten a pair to `room` tokens: drop the start of the first text and the end of the second.

    Each text may fill half of the room, and the part that the other text leaves free.
    """
    first, second = pair.first_end - pair.first, pair.second_end - pair.second
    first = min(first, max(room // 2, room - second))
    second = min(second, room - first)
    return pair._replace(first=pair.first_end - first, second_end=pair.second + second)


class Example(NamedTuple):
    """A pair as model inputs: `tokens`, `kinds` (0 for the first text, 1 for the second) and `labels`.

    The three lists have the full length. The first `used` entries are not padding.
    """

    tokens: list[int]
    kinds: list[int]
    labels: list[int]
    used: int
    follows: bool


def example(
    corpus: Corpus, pair: Pair, *, marks: Marks, vocabulary: int, length: int, numbers: random.Random
) -> Example:
    """Hide some words of a pair. `labels` has their tokens, and `SHOWN` for all other positions.

    Of the words to predict, 80 % become the mask, 10 % become a random token, and 10 % stay.
    """
    first = corpus.tokens[pair.first : pair.first_end]
    second = corpus.tokens[pair.second : pair.second_end]
    tokens = [marks.cls, *first, marks.sep, *second, marks.sep]
    words = [index for index, token in enumerate(tokens) if token not in (marks.cls, marks.sep)]
    # Predicting "unknown" teaches nothing. A pair of unknown words only still needs one label: a mean over none is NaN.
    known = [index for index in words if tokens[index] != marks.unknown] or words
    labels = [SHOWN] * length
    for index in numbers.sample(known, max(1, round(SHARE * len(known)))):
        labels[index] = tokens[index]
        draw = numbers.random()
        if draw < 0.9:
            tokens[index] = marks.mask if draw < 0.8 else numbers.randrange(vocabulary)
    used = len(tokens)
    kinds = [0] * (len(first) + 2) + [1] * (len(second) + 1) + [0] * (length - used)
    return Example([*tokens, *[marks.pad] * (length - used)], kinds, labels, used, pair.follows)
