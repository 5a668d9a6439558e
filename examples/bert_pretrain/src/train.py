"""Train a BERT on text, first on short pairs, then on long ones. It learns hidden words and the order of texts.

All settings are hyperparameters. The script is the same on any number of ranks.
"""

from __future__ import annotations

import argparse
import functools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from common import world
from common.encoder import add_sizes
from common.loop import run
from common.order import Order
from common.settings import add_settings
from common.tokens import Tokenizer
from common.updates import Updates, build_optimizer
from common.world import World
from documents import Document, read
from models import build
from pairs import SHOWN, Corpus, Example, Pair, example, pair_up
from torch.nn import functional

from herringbone_parallel.torch.recipes.api import seeded

# Scores, [n, choices], and the numbers of the right choices, [n].
Scored = tuple[torch.Tensor, torch.Tensor]

# Settings that have a `--long-` variant for the second phase. The phases share all other settings.
_LONG = ("length", "epochs", "rank_batch", "lr", "warmup")


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


class Phase(NamedTuple):
    """Pairs of one length, with their settings, their order and their training steps."""

    settings: argparse.Namespace
    pairs: list[Pair]
    test: list[Pair]
    order: Order
    updates: Updates


class Training:
    """This rank's part of a training run on all ranks."""

    def __init__(self, settings: argparse.Namespace, world: World, train: Path, test: Path) -> None:
        self._world, self._seed = world, settings.seed
        phases = phases_of(settings)
        documents, test_documents = read(train), read(test)
        with seeded(settings.seed):
            texts = (sentence for document in documents for sentence in document)
            self._tokenizer, self.model = build(settings, texts, max(phase.length for phase in phases))
        self._parallel = world.wrap(self.model)
        self._corpus = corpus_of(documents, self._tokenizer)
        self._test = corpus_of(test_documents, self._tokenizer)
        # Both phases share the optimizer: the second one goes on with the first one's moments.
        self._optimizer = build_optimizer(settings, self.model)
        self._phases = [self._phase(phase) for phase in phases]
        self.epochs = sum(phase.epochs for phase in phases)
        self._current, self.order = self._phases[0], self._phases[0].order

    def _phase(self, settings: argparse.Namespace) -> Phase:
        pairs = pair_up(self._corpus, length=settings.length, seed=settings.seed)
        test = pair_up(self._test, length=settings.length, seed=0)
        batches = {"global_batch": settings.global_batch, "rank_batch": settings.rank_batch}
        order = Order(len(pairs), **batches, ranks=self._world.ranks, seed=settings.seed)
        return Phase(settings, pairs, test, order, Updates(settings, self._world, self.model, self._optimizer, order))

    def epoch(self, number: int) -> Iterator[float]:
        """Train one epoch of the phase that it belongs to. Yield the mean loss of each step over all ranks."""
        self._current = self._phases[0 if number < self._phases[0].settings.epochs else 1]
        self.order = self._current.order
        self._parallel.train()
        for step in self.order.epoch(number, rank=self._world.rank):
            parts = ([self._train_example(number, index) for index in part] for part in step)
            yield self._current.updates.step(parts, self._loss)

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return the accuracy on hidden words and on pairs, and the loss. Each rank evaluates a part of the pairs."""
        self.model.eval()
        pairs, size = self._current.test, self._current.settings.rank_batch
        # One row for words and one for pairs: their count, the count of right predictions, and the sum of losses.
        sums = torch.zeros(2, 3, dtype=torch.float64)
        indices = range(self._world.rank, len(pairs), self._world.ranks)
        for first in range(0, len(indices), size):
            part = indices[first : first + size]
            batch = [self._example(self._test, pairs[index], f"test {index}") for index in part]
            for task, (scores, labels) in enumerate(self._scored(self.model, batch)):
                right = (scores.argmax(dim=-1) == labels).sum().item()
                loss = functional.cross_entropy(scores, labels, reduction="sum").item()
                sums[task] += torch.tensor([len(labels), right, loss])
        words, right_words, words_loss, _, right_pairs, pairs_loss = self._world.total(*sums.flatten())
        return {
            "eval_accuracy": right_words / words,
            "eval_next_accuracy": right_pairs / len(pairs),
            "eval_loss": words_loss / words + pairs_loss / len(pairs),
        }

    def _train_example(self, epoch: int, index: int) -> Example:
        """Hide other words in every epoch. The seed of an example does not depend on the number of ranks."""
        return self._example(self._corpus, self._current.pairs[index], f"{self._seed} {epoch} {index}")

    def _example(self, corpus: Corpus, pair: Pair, seed: str) -> Example:
        words, length, numbers = self._tokenizer, self._current.settings.length, random.Random(seed)  # noqa: S311
        return example(corpus, pair, marks=words.marks, vocabulary=words.size, length=length, numbers=numbers)

    def _loss(self, batch: list[Example]) -> torch.Tensor:
        words, pairs = self._scored(self._parallel, batch)
        return functional.cross_entropy(*words) + functional.cross_entropy(*pairs)

    def _scored(self, model: torch.nn.Module, batch: list[Example]) -> tuple[Scored, Scored]:
        """Return the scores and the labels of the hidden words, then those of the pairs."""
        device = self._world.device
        tokens, kinds, labels = (
            torch.tensor([getattr(item, name) for item in batch], device=device)
            for name in ("tokens", "kinds", "labels")
        )
        used = torch.tensor([item.used for item in batch], device=device)
        mask = torch.arange(tokens.shape[1], device=device) < used[:, None]
        hidden = labels != SHOWN
        words, follows = model(tokens, kinds, mask, hidden)
        return (words, labels[hidden]), (follows, torch.tensor([int(item.follows) for item in batch], device=device))


def corpus_of(documents: list[Document], tokenizer: Tokenizer) -> Corpus:
    """Tokenize all documents."""
    corpus = Corpus()
    for document in documents:
        corpus.add([number for number, _, _ in tokenizer(sentence)] for sentence in document)
    return corpus


def main() -> None:
    settings = parse()
    run(settings, functools.partial(Training, settings), world)


if __name__ == "__main__":
    main()
