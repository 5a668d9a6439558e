"""Read a state, whatever mesh wrote it."""

from herringbone_parallel.torch.sharding.checkpointing import load  # noqa: F401
