"""The equality matrix in full: every model under every layout, fp32 and fp64, with its differences to one process.

    python -m tests.campaigns.sharding                                    plain models
    .venv-huggingface/bin/python -m tests.campaigns.sharding --transformers

A cell is "equal" within 1e-5 (fp32) or 1e-10 (fp64) after 5 steps, "refused" where the model says why, else "DIFFERS"
or "FAILS". The exit code is the number of the last two. About a second a cell on an idle machine of two cores.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import torch

from tests.parallel.torch import processes
from tests.parallel.torch.processes import PROCESSES
from tests.parallel.torch.ranks import RankFailedError, Ranks
from tests.parallel.torch.sharding import cells
from tests.parallel.torch.sharding.cells import LAYOUTS, PIPELINE, TOLERANCE, Layout
from tests.parallel.torch.sharding.models import Model

PIPELINE_NAME = "pipeline 2 x shard 2"


def models_of(transformers: bool) -> dict[str, Model]:
    if transformers:
        from tests.parallel.torch.sharding import hugging_face

        return hugging_face.MODELS
    from tests.parallel.torch.sharding import models

    return models.MODELS


def train(transformers: bool, name: str, dtype: torch.dtype, pipeline: bool) -> Any:
    model = models_of(transformers)[name]
    function = cells.train_pipeline if pipeline else cells.train_sharded
    return cells.train_all({name: model}, [dtype], function)[name, dtype]


def run(ranks: Ranks, layout: Layout, arguments: tuple[bool, str, torch.dtype]) -> tuple[str, str]:
    """Run one cell; return its verdict and the differences or the reason."""
    transformers, name, dtype = arguments
    model = models_of(transformers)[name]
    try:
        if layout is PIPELINE:
            by_rank = ranks.run(train, {**layout.parameters, "replicas": 2}, *arguments, True)
        else:
            by_rank = ranks.shard(train, layout.ranks, dict(layout.parameters), *arguments, False)
    except RankFailedError as error:
        return "FAILS", str(error).strip().splitlines()[-1]
    expected = [model.refused[axis] for axis in layout.axes if axis in model.refused]
    if isinstance(by_rank[0], str):
        return ("refused" if expected and expected[0] in by_rank[0] else "FAILS"), by_rank[0]
    difference = cells.compare(by_rank, cells.train_alone(model, dtype, layout.batches))
    equal = max(difference.losses, difference.weights) <= TOLERANCE[dtype] and not expected
    return "equal" if equal else "DIFFERS", f"{difference.losses:.1e}  {difference.weights:.1e}  {difference.weight}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transformers", action="store_true", help="models of transformers instead of plain ones")
    parser.add_argument("--layout", action="append", help="only this layout; may be given several times")
    parser.add_argument("--model", action="append", help="only this model; may be given several times")
    parser.add_argument("--fp64", action="store_true", help="fp64 only")
    options = parser.parse_args()
    layouts = {**LAYOUTS, PIPELINE_NAME: PIPELINE}
    dtypes = [torch.float64] if options.fp64 else list(TOLERANCE)
    if options.transformers:
        # Its import takes seconds, and ranks are forked from the process that has it.
        PROCESSES.set_forkserver_preload([processes.__name__, "tests.parallel.torch.sharding.hugging_face"])
    ranks, bad, began = Ranks(CUDA_VISIBLE_DEVICES=""), 0, time.monotonic()
    print(f"{'layout':21}{'model':17}{'dtype':9}{'verdict':9}losses   weights  worst weight, or reason")
    for name, layout in layouts.items():
        if options.layout and name not in options.layout:
            continue
        for model in models_of(options.transformers):
            if options.model and model not in options.model:
                continue
            for dtype in dtypes:
                verdict, text = run(ranks, layout, (options.transformers, model, dtype))
                bad += verdict.isupper()
                short = str(dtype).removeprefix("torch.")
                print(f"{name:21}{model:17}{short:9}{verdict:9}{text[:120]}", flush=True)
    ranks.close()
    print(f"{bad} cells differ or fail; {time.monotonic() - began:.0f} s")
    return bad


if __name__ == "__main__":
    sys.exit(main())
