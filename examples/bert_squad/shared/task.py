"""Finding answers, without a framework: settings, windows of the questions, batches, and the distributed evaluation."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import order
from common.loop import World
from common.settings import add_settings, add_sizes
from common.tokens import Words, tokenizer_of
from scoring import exact_match, f1
from squad import Question, read
from windows import Window, best, cut

# The scores of each token as the begin of the answer, and as its end: [windows][tokens].
Scores = tuple[list[list[float]], list[list[float]]]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_settings(parser, optimizers=("adamw", "radam", "lamb"))
    parser.set_defaults(clip=1.0)
    parser.add_argument("--pretrained", help="HuggingFace's name or path of a model (default: random weights)")
    parser.add_argument("--length", type=int, default=384, help="tokens per window")
    parser.add_argument("--stride", type=int, default=128, help="tokens between the beginnings of two windows")
    parser.add_argument("--query", type=int, default=64, help="largest number of tokens of a question")
    parser.add_argument("--n-best", type=int, default=20, help="begins and ends that are tried per window")
    parser.add_argument("--longest", type=int, default=30, help="largest number of tokens of an answer")
    add_sizes(parser)
    return parser.parse_known_args(arguments)[0]


class Batch(NamedTuple):
    """Windows as arrays: `tokens`, `kinds`, `mask` (True for text), [n, length]; `begins` and `ends`, [n]."""

    tokens: Any
    kinds: Any
    mask: Any
    begins: Any
    ends: Any


def batch_of(windows: Sequence[Window], pad: int) -> Batch:
    """Return windows as NumPy arrays of int32, and the mask as booleans. `pad` is the token that fills a window."""
    names = ("tokens", "kinds", "begin", "end")
    tokens, kinds, begins, ends = (np.array([getattr(item, name) for item in windows], np.int32) for name in names)
    return Batch(tokens, kinds, tokens != pad, begins, ends)


class Task(ABC):
    """This rank's part of a training run on all ranks. A framework adds the model, its loss, and its steps."""

    # The order of the examples in an epoch: a permutation by count and seed.
    shuffled: Callable[[int, int], list[int]] = staticmethod(order.shuffled)

    def __init__(self, settings: argparse.Namespace, world: World, train: Path, test: Path) -> None:
        self.settings, self.world, self.epochs = settings, world, settings.epochs
        questions = read(train)
        self._test = read(test)
        if settings.pretrained:
            self.tokenizer = tokenizer_of("pretrained", settings.pretrained)
        else:
            texts = (text for question in questions for text in (question.context, question.text))
            self.tokenizer = Words(texts, settings.vocabulary)
        self._windows = [window for question in questions for window in self._cut(question)]
        batches = {"global_batch": settings.global_batch, "rank_batch": settings.rank_batch}
        self.order = order.Order(
            len(self._windows), **batches, ranks=world.ranks, seed=settings.seed, shuffled=self.shuffled
        )
        self.model = self.build_model(self.tokenizer.size)
        self.updates = self.build_updates()

    @abstractmethod
    def build_model(self, vocabulary: int) -> Any:
        """Return the model that the settings name, with equal weights on all ranks."""

    @abstractmethod
    def build_updates(self) -> Any:
        """Return an object whose `step(parts, loss_of)` runs a step of `self.order` and returns its mean loss."""

    @abstractmethod
    def loss(self, batch: Batch) -> Any:
        """Return the mean loss of begins and ends, as a scalar of the framework."""

    @abstractmethod
    def scores(self, batch: Batch) -> Scores:
        """Return the scores of each token, without dropout."""

    def epoch(self, number: int, first: int = 0) -> Iterator[float]:
        """Train one epoch from its step `first` on. Yield the mean loss of each step over all ranks."""
        for step in self.order.epoch(number, rank=self.world.rank)[first:]:
            yield self.updates.step((self._batch([self._windows[index] for index in part]) for part in step), self.loss)

    def evaluate(self) -> dict[str, float]:
        """Return F1 and exact match in percent. Each rank answers a part of the questions."""
        sums = [0.0, 0.0]
        for question in self._test[self.world.rank :: self.world.ranks]:
            windows = self._cut(question)
            scored = list(zip(windows, *self.scores(self._batch(windows)), strict=True))
            answer = best(scored, question.context, n_best=self.settings.n_best, longest=self.settings.longest)
            right = [text for _, text in question.answers]
            sums = [sums[0] + f1(answer, right), sums[1] + exact_match(answer, right)]
        percent = [100 * total / len(self._test) for total in self.world.total(*sums)]
        return dict(zip(("eval_f1", "eval_exact_match"), percent, strict=True))

    def _batch(self, windows: Sequence[Window]) -> Batch:
        return batch_of(windows, self.tokenizer.marks.pad)

    def _cut(self, question: Question) -> list[Window]:
        begin, text = question.answers[0]
        tokens = self.tokenizer(question.text), self.tokenizer(question.context)
        sizes = {name: getattr(self.settings, name) for name in ("length", "stride", "query")}
        return cut(*tokens, (begin, begin + len(text)), marks=self.tokenizer.marks, **sizes)
