"""Processes for ranks: forked from a server that has imported torch, because each import of torch takes seconds."""

from __future__ import annotations

import multiprocessing
import os

# `torch.set_num_threads` affects its own thread only. The threads of microbatches would start workers, which spin.
os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch._dynamo  # noqa: F401  the first optimizer of a process imports it

import herringbone_parallel.torch.model_parallel.api  # noqa: F401

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])
