"""Measures the steps of a training script: seconds, processor seconds and the peak of torch's allocator.

watch = Watch("cpu")
for batch in loader:
    ...
    watch.step_ended()
watch.write()          # does nothing unless PLAN_RESULTS names a folder
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
from allocated import AllocatedMemory

# The first step makes the optimizer's states, and DistributedDataParallel changes its buckets after it.
WARM_UP = 2


class Watch:
    """The times of the steps of this rank, and the most bytes after the first ones."""

    def __init__(self, device: str) -> None:
        self._on_gpu = device == "cuda"
        self._folder = os.environ.get("PLAN_RESULTS")
        self._memory = AllocatedMemory() if self._folder and "LD_PRELOAD" in os.environ else None
        self._moments: list[tuple[float, float]] = []

    def step_ended(self) -> None:
        """Note the end of a step; a step begins at the end of the one before. Waits for a GPU's work."""
        if self._on_gpu:
            torch.cuda.synchronize()
        self._moments.append((time.perf_counter(), time.process_time()))
        if len(self._moments) == WARM_UP:
            if self._on_gpu:
                torch.cuda.reset_peak_memory_stats()
            elif self._memory is not None:
                self._memory.mark()

    def write(self) -> None:
        """Write the results of this rank into the folder that PLAN_RESULTS names."""
        if self._folder is None:
            return
        pairs = list(zip(self._moments, self._moments[1:], strict=False))[WARM_UP - 1 :]
        results = {
            "seconds": [after[0] - before[0] for before, after in pairs],
            "processor_seconds": [after[1] - before[1] for before, after in pairs],
            "peak_bytes": self._peak(),
        }
        Path(self._folder, f"rank-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(results))

    def _peak(self) -> int | None:
        if self._on_gpu:
            return torch.cuda.max_memory_allocated()
        return None if self._memory is None else self._memory.peak()
