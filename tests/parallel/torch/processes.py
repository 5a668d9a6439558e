"""Processes for ranks: forked from one that has imported torch, for which an interpreter of their own takes seconds."""

from __future__ import annotations

import multiprocessing
import os

# `torch.set_num_threads` holds for its own thread: those that run microbatches would start helpers, which spin.
os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch._dynamo  # noqa: F401 - which the first optimizer of a process would import

import herringbone_parallel.torch.model_parallel.api  # noqa: F401

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])
