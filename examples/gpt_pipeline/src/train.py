"""Train a GPT that is split over the ranks of a pipeline, on as many pipelines as the ranks can form."""

from __future__ import annotations

import os
from pathlib import Path

import smdistributed.modelparallel.torch as smp
import torch
from gpt import Text, build, loss_of, parse

from herringbone_parallel.run_log import RunLog
from herringbone_parallel.torch.position.api import Training
from herringbone_parallel.torch.recipes.api import Schedule


@smp.step
def train_step(model, tokens, targets):
    loss = loss_of(model(tokens), targets)
    model.backward(loss)
    return loss


def main() -> None:
    settings = parse()
    smp.init()
    if settings.global_batch % smp.dp_size():
        raise ValueError(f"--global-batch {settings.global_batch} is not a multiple of the {smp.dp_size()} pipelines")
    log = RunLog(ranks=smp.size(), active=smp.rank() == 0)
    with log.interval("init"):
        text = Text(settings)
        model = smp.DistributedModel(build(settings))
        optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=settings.lr))
        schedule = Schedule(length=settings.steps, warmup=settings.warmup).by_steps()
        training = Training(model=model, optimizer=optimizer)
        training.resume()
    with log.epoch(1):
        for step in range(training.step, settings.steps):
            # Every rank draws all windows of the step, and takes those of its pipeline: ranks need not send any data.
            tokens, targets = (part[smp.dp_rank() :: smp.dp_size()] for part in text.batch(step))
            for group in optimizer.param_groups:
                group["lr"] = settings.lr * schedule(step)
            optimizer.zero_grad()
            loss = train_step(model, tokens, targets).reduce_mean()
            smp.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            log.count(settings.global_batch)
            mean = sum(smp.allgather(loss.item(), smp.DP_GROUP)) / smp.dp_size()
            if smp.rank() == 0:
                print(f"step={step + 1} loss={mean:.7f}")
            if training.step % settings.save_every == 0:
                training.save(in_background=True)
    count = sum(parameter.numel() for parameter in model.local_parameters())
    print(f"this rank holds {count} parameters")
    smp.save(model.state_dict(), Path(os.environ["SM_MODEL_DIR"]) / "model.pt", partial=False)
    log.finish()


if __name__ == "__main__":
    main()
