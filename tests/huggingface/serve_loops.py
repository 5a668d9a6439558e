"""Run loops of `resumed_loops` as ranks do, one after the other: a process takes seconds to import transformers.

Each line of standard input is a JSON list: the loop's name, its folder and log, and its options. The answer is a line.
"""

from __future__ import annotations

import gc
import json
import sys
import traceback

from herringbone_entry.ranks import import_hooks

import_hooks.install("", "", "")

import torch  # noqa: E402
from accelerate.state import AcceleratorState, GradientState  # noqa: E402

from herringbone_parallel.torch.position import rank_places  # noqa: E402
from tests.huggingface import resumed_loops  # noqa: E402

torch.set_num_threads(1)
for line in sys.stdin:
    name, folder, log, options = json.loads(line)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    rank_places._Process.numbers = None
    try:
        getattr(resumed_loops, name)(folder, log, **options)
        answer = "done"
    except BaseException:  # noqa: BLE001  the test gets the traceback
        answer = traceback.format_exc()
    gc.collect()
    print("answer:" + json.dumps(answer), flush=True)
