"""The releases of torch that `shard` runs on: `transform` and torch's own class run on older ones, too."""

import inspect

import pytest
from torch.distributed.fsdp import fully_shard

HAS_SHARD = inspect.signature(fully_shard).parameters["reshard_after_forward"].default is None
needs_shard = pytest.mark.skipif(not HAS_SHARD, reason="fully_shard of the oldest torch")
