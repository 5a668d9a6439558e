"""Trains a BERT on text: words that are hidden, and which text follows which; first on short pairs, then on long ones.

All settings are hyperparameters; the script is the same on any number of ranks.
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

# Scores, [n, choices], and which is right.
Scored = tuple[torch.Tensor, torch.Tensor]

# What of the second phase has a setting of its own; all else is as in the first.
_LONG = ("length", "epochs", "rank_batch", "lr", "warmup")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_settings(parser, optimizers=("lamb", "adamw", "radam"))
    parser.set_defaults(clip=1.0, scaling="sqrt")
    parser.add_argument("--pretrained", help="HuggingFace's name or path of a model; without it, one from scratch")
    parser.add_argument("--tokenizer", help="the same, of a tokenizer for a model from scratch")
    parser.add_argument("--length", type=int, default=128, help="tokens of a pair in the first phase")
    parser.add_argument("--long-length", type=int, default=512, help="tokens of a pair in the second phase")
    parser.add_argument("--long-epochs", type=int, default=0, help="epochs of the second phase")
    parser.add_argument("--long-rank-batch", type=int, help="its --rank-batch; a step has as many parts as before")
    parser.add_argument("--long-lr", type=float, help="its --lr, for its own global batch (default: as before)")
    parser.add_argument("--long-warmup", type=float, help="its --warmup")
    add_sizes(parser)
    return parser.parse_known_args(arguments)[0]


def phases_of(settings: argparse.Namespace) -> list[argparse.Namespace]:
    """Return the settings of each phase; a batch of the second one is smaller as its part of a rank is."""
    given = {name: getattr(settings, f"long_{name}") for name in _LONG}
    long = argparse.Namespace(**vars(settings) | {name: value for name, value in given.items() if value is not None})
    parts, rest = divmod(settings.global_batch * long.rank_batch, settings.rank_batch)
    if rest:
        raise ValueError(
            f"--global-batch {settings.global_batch} x --long-rank-batch {long.rank_batch} / --rank-batch"
            f" {settings.rank_batch} is no whole number of pairs"
        )
    long.global_batch = parts
    if settings.long_lr is not None:
        long.base_batch = parts
    return [settings, long] if long.epochs else [settings]


class Phase(NamedTuple):
    """Pairs of one length, and how they are trained on."""

    settings: argparse.Namespace
    pairs: list[Pair]
    test: list[Pair]
    order: Order
    updates: Updates


class Training:
    """One run on all ranks together."""

    def __init__(self, settings: argparse.Namespace, world: World, train: Path, test: Path) -> None:
        self._world, self._seed = world, settings.seed
        chosen = phases_of(settings)
        documents, others = read(train), read(test)
        with seeded(settings.seed):
            texts = (sentence for document in documents for sentence in document)
            self._tokenizer, self.model = build(settings, texts, max(each.length for each in chosen))
        self._parallel = world.wrap(self.model)
        self._corpus, self._test = (corpus_of(each, self._tokenizer) for each in (documents, others))
        self._optimizer = build_optimizer(settings, self.model)
        self._phases = [self._phase(each) for each in chosen]
        self.epochs = sum(each.epochs for each in chosen)
        self._current, self.order = self._phases[0], self._phases[0].order

    def _phase(self, settings: argparse.Namespace) -> Phase:
        pairs = pair_up(self._corpus, length=settings.length, seed=settings.seed)
        test = pair_up(self._test, length=settings.length, seed=0)
        batches = {"global_batch": settings.global_batch, "rank_batch": settings.rank_batch}
        order = Order(len(pairs), **batches, ranks=self._world.ranks, seed=settings.seed)
        return Phase(settings, pairs, test, order, Updates(settings, self._world, self.model, self._optimizer, order))

    def epoch(self, number: int) -> Iterator[float]:
        """Yield the loss of each step, over all ranks."""
        self._current = self._phases[0 if number < self._phases[0].settings.epochs else 1]
        self.order = self._current.order
        self._parallel.train()
        for step in self.order.epoch(number, rank=self._world.rank):
            parts = ([self._train_example(number, index) for index in part] for part in step)
            yield self._current.updates.step(parts, self._loss)

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return the shares of hidden words and of pairs that are found, and the loss; ranks share the pairs."""
        self.model.eval()
        pairs, size = self._current.test, self._current.settings.rank_batch
        # Of words and of pairs: how many there are, how many were found, and the sum of their losses.
        found = torch.zeros(2, 3, dtype=torch.float64)
        mine = range(self._world.rank, len(pairs), self._world.ranks)
        for first in range(0, len(mine), size):
            batch = [self._example(self._test, pairs[index], f"test {index}") for index in mine[first : first + size]]
            for task, (scores, labels) in enumerate(self._scored(self.model, batch)):
                right = (scores.argmax(dim=-1) == labels).sum().item()
                loss = functional.cross_entropy(scores, labels, reduction="sum").item()
                found[task] += torch.tensor([len(labels), right, loss])
        words, right_words, words_loss, _, right_pairs, pairs_loss = self._world.total(*found.flatten())
        return {
            "eval_accuracy": right_words / words,
            "eval_next_accuracy": right_pairs / len(pairs),
            "eval_loss": words_loss / words + pairs_loss / len(pairs),
        }

    def _train_example(self, epoch: int, index: int) -> Example:
        """Hide other words in every epoch, the same ones whatever the number of ranks."""
        return self._example(self._corpus, self._current.pairs[index], f"{self._seed} {epoch} {index}")

    def _example(self, corpus: Corpus, pair: Pair, seed: str) -> Example:
        words, length, numbers = self._tokenizer, self._current.settings.length, random.Random(seed)  # noqa: S311
        return example(corpus, pair, marks=words.marks, vocabulary=words.size, length=length, numbers=numbers)

    def _loss(self, batch: list[Example]) -> torch.Tensor:
        words, pairs = self._scored(self._parallel, batch)
        return functional.cross_entropy(*words) + functional.cross_entropy(*pairs)

    def _scored(self, model: torch.nn.Module, batch: list[Example]) -> tuple[Scored, Scored]:
        """Return the scores of the hidden words and what they are, and the same of the pairs."""
        device = self._world.device
        tokens, kinds, labels = (
            torch.tensor([getattr(each, name) for each in batch], device=device)
            for name in ("tokens", "kinds", "labels")
        )
        used = torch.tensor([each.used for each in batch], device=device)
        mask = torch.arange(tokens.shape[1], device=device) < used[:, None]
        hidden = labels != SHOWN
        words, follows = model(tokens, kinds, mask, hidden)
        return (words, labels[hidden]), (follows, torch.tensor([int(each.follows) for each in batch], device=device))


def corpus_of(documents: list[Document], tokenizer: Tokenizer) -> Corpus:
    corpus = Corpus()
    for document in documents:
        corpus.add([number for number, _, _ in tokenizer(sentence)] for sentence in document)
    return corpus


def main() -> None:
    settings = parse()
    run(settings, functools.partial(Training, settings), world)


if __name__ == "__main__":
    main()
