"""What a BERT is trained on: pairs of texts, of which the second follows the first or does not, and hidden words. Pure.

[CLS] the end of the first text [SEP] the begin of the second [SEP] [PAD] ...

Source: Devlin et al., arXiv 1810.04805, 3.1 and A.1.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from common.tokens import Marks

# Of a pair's tokens that can be hidden, so many are.
SHARE = 0.15
# The label of a token that was not hidden: what torch's cross_entropy leaves out.
SHOWN = -100


@dataclass
class Corpus:
    """All tokens in one row; sentence i begins at `sentences[i]`, document d with sentence `documents[d]`.

    Both end with where the next one would begin. Flat, as a text of a gigabyte has millions of sentences.
    """

    tokens: array[int] = field(default_factory=lambda: array("i"))
    sentences: array[int] = field(default_factory=lambda: array("q", [0]))
    documents: array[int] = field(default_factory=lambda: array("q", [0]))

    def add(self, document: Iterable[Sequence[int]]) -> None:
        """Add a document's sentences; those without a token do not count."""
        for sentence in filter(len, document):
            self.tokens.extend(sentence)
            self.sentences.append(len(self.tokens))
        if len(self.sentences) - 1 > self.documents[-1]:
            self.documents.append(len(self.sentences) - 1)


class Pair(NamedTuple):
    """Two parts of a corpus's row, and whether the second follows the first."""

    first: int
    first_end: int
    second: int
    second_end: int
    follows: bool


def pair_up(corpus: Corpus, *, length: int, seed: int) -> list[Pair]:
    """Cut the documents into pairs of at most `length` tokens with their marks, about half of which follow.

    Sentences are taken until they fill the length. They are cut in two somewhere; or the second half is from another
    document, and the rest of this one is used again. Raises `ValueError` where there is no other document.
    """
    room = length - 3
    if room < 2 or len(corpus.documents) < 3:
        raise ValueError(f"a length of {length} and {len(corpus.documents) - 1} documents: pairs need at least 5 and 2")
    numbers = random.Random(seed)  # noqa: S311  no secret
    start, found = corpus.sentences, []
    for document in range(len(corpus.documents) - 1):
        sentence, last = corpus.documents[document], corpus.documents[document + 1]
        while sentence < last:
            end = sentence + 1
            while end < last and start[end] - start[sentence] < room:
                end += 1
            cut = numbers.randint(sentence + 1, end - 1) if end - sentence > 1 else end
            follows = cut < end and numbers.random() < 0.5
            if follows:
                second, second_end, sentence_after = start[cut], start[end], end
            else:
                second, second_end = _elsewhere(corpus, document, numbers)
                sentence_after = cut
            found.append(_trimmed(Pair(start[sentence], start[cut], second, second_end, follows), room))
            sentence = sentence_after
    return found


def _elsewhere(corpus: Corpus, document: int, numbers: random.Random) -> tuple[int, int]:
    """Return a random sentence of another document, and the end of that document."""
    other = numbers.randrange(len(corpus.documents) - 2)
    other += other >= document
    begin = numbers.randrange(corpus.documents[other], corpus.documents[other + 1])
    return corpus.sentences[begin], corpus.sentences[corpus.documents[other + 1]]


def _trimmed(pair: Pair, room: int) -> Pair:
    """Keep what lies next to where the two texts meet; each may have half of the room, and what the other leaves."""
    first, second = pair.first_end - pair.first, pair.second_end - pair.second
    first = min(first, max(room // 2, room - second))
    second = min(second, room - first)
    return pair._replace(first=pair.first_end - first, second_end=pair.second + second)


class Example(NamedTuple):
    """`tokens`, `kinds` (0 the first text, 1 the second) and `labels` fill the length; `used` of it is no padding."""

    tokens: list[int]
    kinds: list[int]
    labels: list[int]
    used: int
    follows: bool


def example(
    corpus: Corpus, pair: Pair, *, marks: Marks, vocabulary: int, length: int, numbers: random.Random
) -> Example:
    """Return a pair with some of its words hidden; `labels` has what they were, and `SHOWN` elsewhere.

    Of those that are to be found, 8 of 10 become the mask, 1 a random token, and 1 stays as it is.
    """
    first = corpus.tokens[pair.first : pair.first_end]
    second = corpus.tokens[pair.second : pair.second_end]
    tokens = [marks.cls, *first, marks.sep, *second, marks.sep]
    words = [place for place, token in enumerate(tokens) if token not in (marks.cls, marks.sep)]
    # Where the vocabulary has not the word there is nothing to find, unless there is nothing else.
    known = [place for place in words if tokens[place] != marks.unknown] or words
    labels = [SHOWN] * length
    for place in numbers.sample(known, max(1, round(SHARE * len(known)))):
        labels[place] = tokens[place]
        way = numbers.random()
        if way < 0.9:
            tokens[place] = marks.mask if way < 0.8 else numbers.randrange(vocabulary)
    used = len(tokens)
    kinds = [0] * (len(first) + 2) + [1] * (len(second) + 1) + [0] * (length - used)
    return Example([*tokens, *[marks.pad] * (length - used)], kinds, labels, used, pair.follows)
