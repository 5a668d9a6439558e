"""Only launched ranks can import `smdistributed`; the shims export the names of SMP v1 and Horovod."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import herringbone_parallel
from tests.parallel.torch.ranks import free_port

SHIM = Path(herringbone_parallel.__file__).parent.parent / "shim"


def test_the_shim_is_not_importable_outside_a_launched_rank() -> None:
    assert importlib.util.find_spec("smdistributed") is None


def test_the_shim_exports_all_public_names() -> None:
    program = (
        "import smdistributed.modelparallel.torch as smp, herringbone_parallel.torch.model_parallel.api as ours\n"
        "assert smp.__all__ == ours.__all__ and all(getattr(smp, n) is getattr(ours, n) for n in ours.__all__)\n"
        "try: smp.init()\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    process = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(SHIM)}, capture_output=True, text=True, check=True
    )
    assert process.stdout.startswith("ParallelError the job's distribution has no smdistributed.modelparallel")


def test_the_data_parallel_shim_registers_the_backend_and_exports_v1s_names() -> None:
    program = (
        "import torch.distributed as torchs\n"
        "import smdistributed.dataparallel.torch.torch_smddp\n"
        "import smdistributed.dataparallel.torch.distributed as dist\n"
        "from smdistributed.dataparallel.torch.parallel import DistributedDataParallel as one\n"
        "from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel as other\n"
        "from torch.nn.parallel import DistributedDataParallel\n"
        "assert one is other and issubclass(one, DistributedDataParallel)\n"
        "print(torchs.Backend.SMDDP, dist.is_available(), dist.is_initialized(), dist.ReduceOp.AVERAGE)\n"
        "try: dist.init_process_group()\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    environment = {
        "PYTHONPATH": os.pathsep.join([str(SHIM), *sys.path]),
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
    }
    environment["MASTER_PORT"] = str(free_port())
    process = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    lines = process.stdout.splitlines()
    assert lines[0] == "smddp True False RedOpType.AVG"
    assert lines[1].startswith(
        "ParallelError the job's distribution has no smdistributed.dataparallel: add distribution={"
    )


@pytest.mark.parametrize(("real", "origin"), [(False, "horovod/tensorflow/__init__.py"), (True, "real/horovod")])
def test_a_real_horovod_comes_before_ours_wherever_it_is_installed(tmp_path: Path, real: bool, origin: str) -> None:
    if real:
        (tmp_path / "real" / "horovod" / "tensorflow").mkdir(parents=True)
        for folder in ("horovod", "horovod/tensorflow"):
            (tmp_path / "real" / folder / "__init__.py").touch()
    program = "import importlib.util; print(importlib.util.find_spec('horovod.tensorflow').origin)"
    path = os.pathsep.join([str(SHIM.with_name("shim_horovod")), str(tmp_path / "real")])
    process = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert origin in process.stdout
