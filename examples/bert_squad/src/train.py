"""Train a BERT to find answers in a text, on any number of ranks. All settings are hyperparameters."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from pathlib import Path

import torch
from common import world
from common.encoder import add_sizes
from common.loop import run
from common.order import Order
from common.settings import add_settings
from common.updates import Updates, build_optimizer
from common.world import World
from models import Scores, build
from scoring import exact_match, f1
from squad import Question, read
from torch import nn
from windows import Window, best, cut

from herringbone_parallel.torch.recipes.api import seeded


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


class Training:
    """This rank's part of a training run on all ranks."""

    def __init__(self, settings: argparse.Namespace, world: World, train: Path, test: Path) -> None:
        self._settings, self._world, self.epochs = settings, world, settings.epochs
        questions = read(train)
        self._test = read(test)
        with seeded(settings.seed):
            texts = (text for question in questions for text in (question.context, question.text))
            self._tokenizer, self.model = build(settings, texts)
        self._parallel = world.wrap(self.model)
        self._windows = [window for question in questions for window in self._cut(question)]
        batches = {"global_batch": settings.global_batch, "rank_batch": settings.rank_batch}
        self.order = Order(len(self._windows), **batches, ranks=world.ranks, seed=settings.seed)
        self._updates = Updates(settings, world, self.model, build_optimizer(settings, self.model), self.order)

    def epoch(self, number: int) -> Iterator[float]:
        """Train one epoch. Yield the mean loss of each step over all ranks."""
        self._parallel.train()
        for step in self.order.epoch(number, rank=self._world.rank):
            yield self._updates.step(([self._windows[index] for index in part] for part in step), self._loss)

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return F1 and exact match in percent. Each rank answers a part of the questions."""
        self.model.eval()
        sums = [0.0, 0.0]
        for question in self._test[self._world.rank :: self._world.ranks]:
            windows = self._cut(question)
            begins, ends = (scores.float().tolist() for scores in self._scores(self.model, windows))
            limits = {"n_best": self._settings.n_best, "longest": self._settings.longest}
            answer = best(list(zip(windows, begins, ends, strict=True)), question.context, **limits)
            right = [text for _, text in question.answers]
            sums = [sums[0] + f1(answer, right), sums[1] + exact_match(answer, right)]
        percent = [100 * total / len(self._test) for total in self._world.total(*sums)]
        return dict(zip(("eval_f1", "eval_exact_match"), percent, strict=True))

    def _loss(self, windows: list[Window]) -> torch.Tensor:
        begins = torch.tensor([window.begin for window in windows], device=self._world.device)
        ends = torch.tensor([window.end for window in windows], device=self._world.device)
        scored = self._scores(self._parallel, windows)
        return sum(nn.functional.cross_entropy(*pair) for pair in zip(scored, (begins, ends), strict=True)) / 2

    def _scores(self, model: nn.Module, windows: list[Window]) -> Scores:
        tokens = torch.tensor([window.tokens for window in windows], device=self._world.device)
        kinds = torch.tensor([window.kinds for window in windows], device=self._world.device)
        return model(tokens, kinds, tokens != self._tokenizer.marks.pad)

    def _cut(self, question: Question) -> list[Window]:
        begin, text = question.answers[0]
        tokens = self._tokenizer(question.text), self._tokenizer(question.context)
        sizes = {name: getattr(self._settings, name) for name in ("length", "stride", "query")}
        return cut(*tokens, (begin, begin + len(text)), marks=self._tokenizer.marks, **sizes)


def main() -> None:
    settings = parse()
    run(settings, functools.partial(Training, settings), world)


if __name__ == "__main__":
    main()
