"""Serves Hugging Face's `Trainer`, whose branch for SMDDP no longer fits the rest of it.

The rank's import hook calls `serve` with `transformers.training_args` and `transformers.trainer` as soon as the script
has imported them. Scripts stay as they are. Two places are changed:

    [1] the mode        the Trainer averages losses for its log, and waits for checkpoints, only in the mode DISTRIBUTED
    [2] the device      `TrainingArguments._setup_devices` needs a GPU to open the group "smddp"

Read in the sources of transformers 4.57 and 5.23, and accelerate 1.15.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from herringbone_contract.library_hooks import require
from herringbone_parallel.torch.data_parallel.api import install
from herringbone_parallel.torch.data_parallel.backend import NAME
from herringbone_parallel.torch.hugging_face_hooks import DATA_PARALLEL_ARGUMENTS


def serve(module: ModuleType) -> None:
    """Change a module of transformers that the script has just imported."""
    if module.__name__ != "transformers.training_args" or not module.is_sagemaker_dp_enabled():
        return
    require(DATA_PARALLEL_ARGUMENTS)
    arguments = module.TrainingArguments
    # [1]
    arguments.parallel_mode = property(lambda _: module.ParallelMode.DISTRIBUTED)
    # [2]
    if not torch.cuda.is_available():
        arguments._setup_devices = functools.cached_property(_open_group_first(arguments._setup_devices.func))
        arguments._setup_devices.__set_name__(arguments, "_setup_devices")


def _open_group_first(setup_devices: Callable[[Any], torch.device]) -> Callable[[Any], torch.device]:
    def setup(self: Any) -> torch.device:
        # accelerate takes a group that is open; the group that it would open for the CPU sums with gloo.
        if not dist.is_initialized():
            install()
            dist.init_process_group(NAME)
        return setup_devices(self)

    return setup
