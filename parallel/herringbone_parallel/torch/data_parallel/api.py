"""Data parallelism for PyTorch, under AWS's names; `herringbone_parallel.reduce` sums the gradients.

    import smdistributed.dataparallel.torch.torch_smddp     # in a launched rank
    torch.distributed.init_process_group("smddp")
    model = torch.nn.parallel.DistributedDataParallel(model)

`backend` is the backend of torch.distributed, `ddp` extends torch's DistributedDataParallel on that backend,
`distributed` and `parallel` are the modules of SMDDP v1.
"""

from herringbone_contract.library_hooks import require
from herringbone_parallel.torch.data_parallel.backend import register
from herringbone_parallel.torch.data_parallel.ddp import adopt
from herringbone_parallel.torch.library_hooks import DATA_PARALLEL


def install() -> None:
    """Register the backend "smddp", and extend DistributedDataParallel on it."""
    require(DATA_PARALLEL)
    register()
    adopt()
