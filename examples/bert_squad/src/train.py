"""Trains a BERT to find answers in a text, on any number of ranks; all settings are hyperparameters."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from common.order import Order
from common.settings import add_settings
from common.world import World, join, leave
from models import Bert, Tokenizer, Words, pretrained
from scoring import exact_match, f1
from squad import Question, read
from torch import nn
from windows import Window, best, cut

from herringbone_parallel.recipes import (
    LAMB,
    Precision,
    Schedule,
    require_equal,
    scale_learning_rate,
    seeded,
    weight_groups,
)
from herringbone_parallel.run_log import RunLog

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_settings(parser, optimizers=("adamw", "radam", "lamb"))
    parser.add_argument("--pretrained", help="HuggingFace's name or path of a model; without it, one from scratch")
    parser.add_argument("--length", type=int, default=384, help="tokens of a window")
    parser.add_argument("--stride", type=int, default=128, help="tokens from one window's begin to the next one's")
    parser.add_argument("--query", type=int, default=64, help="tokens of a question that are kept")
    parser.add_argument("--n-best", type=int, default=20, help="begins and ends of a window that are tried")
    parser.add_argument("--longest", type=int, default=30, help="tokens of an answer")
    parser.add_argument("--clip", type=float, default=1.0, help="norm of the gradients")
    for name, size in (("vocabulary", 4000), ("width", 64), ("depth", 2), ("heads", 4)):
        parser.add_argument(f"--{name}", type=int, default=size, help="of a model from scratch")
    return parser.parse_known_args()[0]


class Training:
    """One run: `epoch` trains, `score` evaluates, both on all ranks together."""

    def __init__(self, settings: argparse.Namespace, world: World, train: Path, test: Path) -> None:
        self._settings, self._world = settings, world
        questions = read(train)
        self._test = read(test)
        with seeded(settings.seed):
            self._tokenizer, self._model = build(settings, questions)
        require_equal(self._model)
        self._model.to(world.device)
        self._parallel = world.wrap(self._model)
        self._windows = [window for question in questions for window in self._cut(question)]
        batches = {"global_batch": settings.global_batch, "rank_batch": settings.rank_batch}
        self.order = Order(len(self._windows), **batches, ranks=world.ranks, seed=settings.seed)
        base = settings.base_batch or settings.global_batch
        rate = scale_learning_rate(settings.lr, batch=settings.global_batch, base_batch=base, rule=settings.scaling)
        self._optimizer = build_optimizer(settings.optimizer, weight_groups(self._model, settings.weight_decay), rate)
        schedule = Schedule(length=settings.epochs, warmup=settings.warmup, decay="polynomial")
        by_steps = schedule.by_steps(self.order.steps_per_epoch)
        self._scheduler = torch.optim.lr_scheduler.LambdaLR(self._optimizer, by_steps)
        self._precision = Precision(settings.precision, world.device)

    def epoch(self, number: int) -> Iterator[float]:
        """Yield the loss of each step, over all ranks."""
        self._parallel.train()
        for step in self.order.epoch(number, rank=self._world.rank):
            total = 0.0
            for part in step:
                windows = [self._windows[index] for index in part]
                begins = torch.tensor([window.begin for window in windows], device=self._world.device)
                ends = torch.tensor([window.end for window in windows], device=self._world.device)
                with self._precision.autocast():
                    scored = self._parallel(*self._batch(windows))
                    loss = (
                        sum(nn.functional.cross_entropy(*pair) for pair in zip(scored, (begins, ends), strict=True)) / 2
                    )
                # With an aggregation frequency the gradients are there after the last part of the step.
                self._precision.backward(loss)
                total += loss.item()
            self._precision.clip(self._optimizer, self._model.parameters(), self._settings.clip)
            self._precision.step(self._optimizer)
            self._optimizer.zero_grad()
            self._scheduler.step()
            yield self._world.total(total)[0] / (len(step) * self._world.ranks)

    @torch.no_grad()
    def score(self) -> tuple[float, float]:
        """Return F1 and exact match in percent; each rank answers its own questions."""
        self._model.eval()
        found = [0.0, 0.0]
        for question in self._test[self._world.rank :: self._world.ranks]:
            windows = self._cut(question)
            begins, ends = (scores.float().tolist() for scores in self._model(*self._batch(windows)))
            limits = {"n_best": self._settings.n_best, "longest": self._settings.longest}
            answer = best(list(zip(windows, begins, ends, strict=True)), question.context, **limits)
            right = [text for _, text in question.answers]
            found = [found[0] + f1(answer, right), found[1] + exact_match(answer, right)]
        return tuple(100 * total / len(self._test) for total in self._world.total(*found))

    def save(self, path: Path) -> None:
        torch.save(self._model.state_dict(), path)

    def _cut(self, question: Question) -> list[Window]:
        begin, text = question.answers[0]
        tokens = self._tokenizer(question.text), self._tokenizer(question.context)
        sizes = {name: getattr(self._settings, name) for name in ("length", "stride", "query")}
        return cut(*tokens, (begin, begin + len(text)), marks=self._tokenizer.marks, **sizes)

    def _batch(self, windows: list[Window]) -> Batch:
        tokens = torch.tensor([window.tokens for window in windows], device=self._world.device)
        kinds = torch.tensor([window.kinds for window in windows], device=self._world.device)
        return tokens, kinds, tokens != self._tokenizer.marks.pad


def build(settings: argparse.Namespace, questions: list[Question]) -> tuple[Tokenizer, nn.Module]:
    if settings.pretrained:
        return pretrained(settings.pretrained)
    texts = (text for question in questions for text in (question.context, question.text))
    sizes = {name: getattr(settings, name) for name in ("vocabulary", "length", "width", "depth", "heads")}
    return Words(texts, settings.vocabulary), Bert(**sizes)


def build_optimizer(name: str, groups: list[dict], rate: float) -> torch.optim.Optimizer:
    if name == "lamb":
        return LAMB(groups, lr=rate)
    # `adapt` is a word of LAMB.
    plain = [{key: value for key, value in group.items() if key != "adapt"} for group in groups]
    if name == "radam":
        return torch.optim.RAdam(plain, lr=rate, decoupled_weight_decay=True)
    return torch.optim.AdamW(plain, lr=rate)


def main() -> None:
    settings = parse()
    world = join()
    log = RunLog(ranks=world.ranks, active=world.rank == 0, target=settings.target, alone=settings.alone)
    with log.interval("init"):
        channels = (Path(os.environ[f"SM_CHANNEL_{name}"]) for name in ("TRAINING", "TEST"))
        training = Training(settings, world, *channels)
    log.point("global_batch_size", settings.global_batch)
    log.point("seed", settings.seed)
    done = 0
    for epoch in range(settings.epochs):
        with log.epoch(epoch + 1):
            for loss in training.epoch(epoch):
                done += 1
                log.count(settings.global_batch)
                if world.rank == 0:
                    print(f"step={done} loss={loss:.7f}")
                if done == settings.steps:
                    break
        score, exact = training.score()
        log.point("eval_exact_match", exact, epoch_num=epoch + 1)
        if log.evaluation("eval_f1", score, epoch + 1) or done == settings.steps:
            break
    if world.rank == 0:
        training.save(Path(os.environ["SM_MODEL_DIR"]) / "model.pt")
    log.finish(require_target=settings.require_target)
    leave()


if __name__ == "__main__":
    main()
