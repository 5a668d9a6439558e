"""Warn when torch's memory manager frees its cache in a step, because that synchronises the device and costs time."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


class CacheFlushes:
    """Watches the number of allocations that succeeded only after the allocator had freed its cache.

    `read` returns that number since the process began.
    """

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read
        self._seen = read()
        self._steps = 0
        self._hook: Any = None

    @classmethod
    def of_cuda(cls) -> CacheFlushes:
        """Watch the allocator of this rank's CUDA device."""
        return cls(lambda: torch.cuda.memory_stats().get("num_alloc_retries", 0))

    def watch(self) -> None:
        """Look after each step of an optimizer from now on."""
        self._hook = register_optimizer_step_post_hook(lambda *_: self.look())

    def look(self) -> None:
        """Warn if the cache was flushed since the last look."""
        self._steps += 1
        seen = self._read()
        if seen > self._seen:
            warnings.warn(
                f"the memory manager flushed its cache {seen - self._seen} times in step {self._steps}: the step waited"
                " for the device, and the model hardly fits. Use a smaller batch, a larger hybrid_shard_degree or"
                " activation checkpointing (fsdp_cache_flush_warnings reports this)",
                RuntimeWarning,
                stacklevel=2,
            )
        self._seen = seen

    def close(self) -> None:
        """Stop looking."""
        if self._hook is not None:
            self._hook.remove()
