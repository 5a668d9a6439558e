"""Write a state, now or in the background."""

from herringbone_parallel.torch.sharding.checkpointing import (  # noqa: F401
    async_save,
    maybe_finalize_async_calls,
    save,
)
