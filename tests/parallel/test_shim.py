"""`smdistributed` exists in launched ranks and nowhere else."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import herringbone_parallel

SHIM = Path(herringbone_parallel.__file__).parent.parent / "shim"


def test_the_shim_is_not_importable_outside_a_launched_rank() -> None:
    assert importlib.util.find_spec("smdistributed") is None


def test_the_shim_shows_the_whole_public_list() -> None:
    program = (
        "import smdistributed.modelparallel.torch as smp, herringbone_parallel.torch as ours\n"
        "assert smp.__all__ == ours.__all__ and all(getattr(smp, n) is getattr(ours, n) for n in ours.__all__)\n"
        "try: smp.init()\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(SHIM)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("ParallelError SM_HP_MP_PARAMETERS is not set")
