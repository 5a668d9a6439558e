"""The names that fragments of a training script take for granted, page by page.

`HERE` runs in the process of the tests. `RANK` runs in a rank of one job, in which the parallel libraries work. All
fragments of a page share the names, in the order of the page.
"""

HERE = {
    "docs/do/large-batches.md": """
import torch
from herringbone_parallel.run_log import RunLog

model, steps_per_epoch = torch.nn.Linear(2, 2), 10
world_size = 1
rank = epoch = 0
global_batch, accuracy = 32, 0.98
""",
    "docs/do/metrics.md": """
import os, types

class SummaryWriter:
    def __init__(self, folder): assert folder
    def add_scalar(self, name, value, step): assert name
    def close(self): pass

os.environ.setdefault("SM_OUTPUT_DATA_DIR", ".")
args, loss = types.SimpleNamespace(epochs=1), types.SimpleNamespace(item=lambda: 0.5)
""",
    "docs/do/model-parallel-pytorch.md": """
from herringbone_parallel.core.pipeline import simulate as _simulate
from herringbone_parallel.core.pipeline.trace import write_trace as _write

_stages = [[_simulate.Segment(0, forward_s=0.05, backward_s=0.1)]] * 2
_events = _simulate.simulate(_stages, pipeline="interleaved", active=2).events
_write("timeline.json", [event._replace(step=5) for rank in _events for event in rank])
""",
    "docs/understand/sums.md": """
from herringbone_parallel.core.sums.links import fit, host_link
from herringbone_parallel.core.sums.shards import busiest_share

points = [(4096, 0.001), (32768, 0.002), (262144, 0.01)]
gradient_bytes, forward_s, backward_s = 25_000_000, 0.1, 0.2
""",
}

RANK = {
    "docs/do/model-parallel-pytorch.md": """
import torch
import torch.nn.functional as F
from torch.utils.data import DistributedSampler, TensorDataset

Net = lambda: torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
dataset = TensorDataset(torch.randn(8, 4), torch.zeros(8, dtype=torch.long))
loader = torch.utils.data.DataLoader(dataset, batch_size=8)
""",
    "docs/do/resume.md": """
import os, types
from pathlib import Path
import torch
import smdistributed.modelparallel.torch as smp

args = types.SimpleNamespace(epochs=1)
smp.init()
model = smp.DistributedModel(torch.nn.Linear(4, 2))
optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

@smp.step
def _step(model, inputs):
    model.backward(model(inputs).sum())

_step(model, torch.randn(8, 4))
optimizer.step()
""",
    "docs/understand/sums.md": """
import numpy

gradients = numpy.ones(1000, dtype=numpy.float32)
""",
    "docs/do/data-parallel-pytorch.md": """
import torch

model = torch.nn.Linear(4, 2)
""",
}

# Words of a fragment by which it belongs into a rank.
RANK_WORDS = ("smp.", "import smdistributed", "Settings.from_environment")
