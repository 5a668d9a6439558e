"""Pretraining in two phases, without a framework: settings, pairs of texts, batches, and the distributed evaluation."""

from __future__ import annotations

import argparse
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import order
from common.loop import World
from common.settings import add_settings, add_sizes
from common.tokens import Tokenizer, Words, tokenizer_of
from documents import Document, read
from pairs import SHOWN, Corpus, Example, Pair, example, pair_up

# Settings that have a `--long-` variant for the second phase. The phases share all other settings.
_LONG = ("length", "epochs", "rank_batch", "lr", "warmup")
# Scores of the hidden words, [hidden, vocabulary], and of the pairs, [n, 2], in NumPy.
Scores = tuple[Any, Any]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_settings(parser, optimizers=("lamb", "adamw", "radam"))
    parser.set_defaults(clip=1.0, scaling="sqrt")
    parser.add_argument("--pretrained", help="HuggingFace's name or path of a model (default: random weights)")
    parser.add_argument("--tokenizer", help="HuggingFace's name or path of a tokenizer (default: words of the text)")
    parser.add_argument("--length", type=int, default=128, help="tokens of a pair in the first phase")
    parser.add_argument("--long-length", type=int, default=512, help="tokens of a pair in the second phase")
    parser.add_argument("--long-epochs", type=int, default=0, help="epochs of the second phase")
    parser.add_argument(
        "--long-rank-batch", type=int, help="--rank-batch of the second phase; a step has as many parts as before"
    )
    parser.add_argument("--long-lr", type=float, help="--lr of the second phase, for its global batch (default: --lr)")
    parser.add_argument("--long-warmup", type=float, help="--warmup of the second phase")
    add_sizes(parser)
    return parser.parse_known_args(arguments)[0]


def phases_of(settings: argparse.Namespace) -> list[argparse.Namespace]:
    """Return the settings of each phase. The second global batch shrinks by the same factor as its rank batch."""
    overrides = {name: getattr(settings, f"long_{name}") for name in _LONG}
    overrides = {name: value for name, value in overrides.items() if value is not None}
    long = argparse.Namespace(**vars(settings) | overrides)
    # The aggregation frequency of the job holds for both phases, so a step keeps its number of parts.
    long_batch, rest = divmod(settings.global_batch * long.rank_batch, settings.rank_batch)
    if rest:
        raise ValueError(
            f"--global-batch {settings.global_batch} x --long-rank-batch {long.rank_batch} / --rank-batch"
            f" {settings.rank_batch} is not a whole number of pairs"
        )
    long.global_batch = long_batch
    if settings.long_lr is not None:
        long.base_batch = long_batch
    return [settings, long] if long.epochs else [settings]


class Batch(NamedTuple):
    """Pairs of texts as arrays.

    `tokens`, `kinds` and `mask` are [n, length]; `mask` is True for text. `places` are the hidden words' indices among
    all n x length tokens, and `words` their tokens, [hidden]. `follows`, [n], is 1 if the second text follows.
    """

    tokens: Any
    kinds: Any
    mask: Any
    places: Any
    words: Any
    follows: Any


def batch_of(examples: Sequence[Example]) -> Batch:
    """Return examples as NumPy arrays of int32, and the mask as booleans."""
    names = ("tokens", "kinds", "labels", "used", "follows")
    tokens, kinds, labels, used, follows = (
        np.array([getattr(item, name) for item in examples], np.int32) for name in names
    )
    places = np.flatnonzero(labels != SHOWN).astype(np.int32)
    mask = np.arange(tokens.shape[1]) < used[:, None]
    return Batch(tokens, kinds, mask, places, labels.reshape(-1)[places], follows)


class Phase(NamedTuple):
    """Pairs of one length, with their settings, their order and their training steps."""

    settings: argparse.Namespace
    pairs: list[Pair]
    test: list[Pair]
    order: order.Order
    updates: Any


class Task(ABC):
    """This rank's part of a training run on all ranks. A framework adds the model, its loss, and its steps."""

    # The order of the examples in an epoch: a permutation by count and seed.
    shuffled: Callable[[int, int], list[int]] = staticmethod(order.shuffled)

    def __init__(self, settings: argparse.Namespace, world: World, train: Path, test: Path) -> None:
        self.settings, self.world, self._seed = settings, world, settings.seed
        phases = phases_of(settings)
        documents, test_documents = read(train), read(test)
        self.tokenizer = _tokenizer(settings, documents)
        self._corpus = corpus_of(documents, self.tokenizer)
        self._test = corpus_of(test_documents, self.tokenizer)
        self.model = self.build_model(self.tokenizer.size, max(phase.length for phase in phases))
        # Both phases share the optimizer: the second one goes on with the first one's moments.
        self.optimizer = self.build_optimizer()
        self.phases = [self._phase(phase) for phase in phases]
        self.epochs = sum(phase.epochs for phase in phases)
        self._current, self.order = self.phases[0], self.phases[0].order

    @abstractmethod
    def build_model(self, vocabulary: int, length: int) -> Any:
        """Return the model that the settings name, with equal weights on all ranks. `length` is that of all phases."""

    @abstractmethod
    def build_optimizer(self) -> Any:
        """Return the optimizer of both phases."""

    @abstractmethod
    def build_updates(self, settings: argparse.Namespace, order: order.Order) -> Any:
        """Return an object whose `step(parts, loss_of)` runs a step of this phase and returns its mean loss."""

    @abstractmethod
    def loss(self, batch: Batch) -> Any:
        """Return the mean loss of the hidden words plus that of the pairs, as a scalar of the framework."""

    @abstractmethod
    def scores(self, batch: Batch) -> Scores:
        """Return the scores of the hidden words, and of the pairs, without dropout."""

    def _phase(self, settings: argparse.Namespace) -> Phase:
        pairs = pair_up(self._corpus, length=settings.length, seed=settings.seed)
        test = pair_up(self._test, length=settings.length, seed=0)
        batches = {"global_batch": settings.global_batch, "rank_batch": settings.rank_batch}
        steps = order.Order(len(pairs), **batches, ranks=self.world.ranks, seed=settings.seed, shuffled=self.shuffled)
        return Phase(settings, pairs, test, steps, self.build_updates(settings, steps))

    def epoch(self, number: int, first: int = 0) -> Iterator[float]:
        """Train one epoch of the phase that it belongs to, from its step `first` on.

        Yield the mean loss of each step over all ranks.
        """
        self._current = self.phases[0 if number < self.phases[0].settings.epochs else 1]
        self.order = self._current.order
        for step in self.order.epoch(number, rank=self.world.rank)[first:]:
            parts = (batch_of([self._train_example(number, index) for index in part]) for part in step)
            yield self._current.updates.step(parts, self.loss)

    def evaluate(self) -> dict[str, float]:
        """Return the accuracy on hidden words and on pairs, and the loss. Each rank evaluates a part of the pairs."""
        pairs, size = self._current.test, self._current.settings.rank_batch
        # One row for words and one for pairs: their count, the count of right predictions, and the sum of losses.
        sums = np.zeros((2, 3))
        indices = range(self.world.rank, len(pairs), self.world.ranks)
        for first in range(0, len(indices), size):
            part = indices[first : first + size]
            batch = batch_of([self._example(self._test, pairs[index], f"test {index}") for index in part])
            words, follows = self.scores(batch)
            sums += [_counts(words, batch.words), _counts(follows, batch.follows)]
        words, right_words, words_loss, _, right_pairs, pairs_loss = self.world.total(*sums.ravel())
        return {
            "eval_accuracy": right_words / words,
            "eval_next_accuracy": right_pairs / len(pairs),
            "eval_loss": words_loss / words + pairs_loss / len(pairs),
        }

    def _train_example(self, epoch: int, index: int) -> Example:
        """Hide other words in every epoch. The seed of an example does not depend on the number of ranks."""
        return self._example(self._corpus, self._current.pairs[index], f"{self._seed} {epoch} {index}")

    def _example(self, corpus: Corpus, pair: Pair, seed: str) -> Example:
        words, length, numbers = self.tokenizer, self._current.settings.length, random.Random(seed)  # noqa: S311
        return example(corpus, pair, marks=words.marks, vocabulary=words.size, length=length, numbers=numbers)


def _tokenizer(settings: argparse.Namespace, documents: list[Document]) -> Tokenizer:
    if settings.pretrained:
        return tokenizer_of("pretrained", settings.pretrained)
    if settings.tokenizer:
        return tokenizer_of("tokenizer", settings.tokenizer)
    return Words((sentence for document in documents for sentence in document), settings.vocabulary)


def _counts(scores: Any, labels: Any) -> tuple[int, int, float]:
    """Return the number of labels, that of right predictions, and the sum of the cross entropies, in fp64."""
    scores = np.asarray(scores, np.float64)
    shifted = scores - scores.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(labels)), labels]
    return len(labels), int((scores.argmax(axis=1) == labels).sum()), float(losses.sum())


def corpus_of(documents: list[Document], tokenizer: Tokenizer) -> Corpus:
    """Tokenize all documents."""
    corpus = Corpus()
    for document in documents:
        corpus.add([number for number, _, _ in tokenizer(sentence)] for sentence in document)
    return corpus
