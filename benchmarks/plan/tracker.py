"""Print the peak that torch's own MemTracker finds for one rank of a plain script.

Its tensors are real ones: on fake tensors it misses what the operations of an LSTM keep.

Usage: python tracker.py --model gpt2 [--size full|small] [--batch 4]
"""

from __future__ import annotations

import torch
from cases import CASES
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.data import default_collate
from train import parse


def main() -> None:
    settings = parse(None)
    case = CASES[settings.model]
    model = case.make(settings.size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = default_collate([case.sample(case.length[settings.size])] * settings.batch)
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    with tracker:
        # The second step is the first one that finds the optimizer's states.
        for number in range(2):
            if number:
                tracker.reset_mod_stats()
            optimizer.zero_grad()
            case.loss(model, batch).backward()
            optimizer.step()
    print(max(kinds["Total"] for kinds in tracker.get_tracker_snapshot("peak").values()))


if __name__ == "__main__":
    main()
