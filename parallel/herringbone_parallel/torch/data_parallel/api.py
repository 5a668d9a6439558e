"""Data parallelism for PyTorch: sums of gradients by `herringbone_parallel.reduce`, under the names that scripts know.

    import smdistributed.dataparallel.torch.torch_smddp     # in a launched rank
    torch.distributed.init_process_group("smddp")
    model = torch.nn.parallel.DistributedDataParallel(model)

`backend` is the backend of torch.distributed, `ddp` what torch's DistributedDataParallel does on it by itself,
`distributed` and `parallel` the surface of SMDDP v1.
"""

from herringbone_parallel.torch.data_parallel.backend import register
from herringbone_parallel.torch.data_parallel.ddp import adopt


def install() -> None:
    """Make `init_process_group("smddp")` possible, and DistributedDataParallel at home on it."""
    register()
    adopt()
