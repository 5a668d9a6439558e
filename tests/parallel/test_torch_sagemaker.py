"""Only ranks of jobs that ask for it can import `torch.sagemaker`; torch itself finds the folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import herringbone_parallel

SHIM = Path(herringbone_parallel.__file__).parent.parent / "shim_sagemaker"
# The imports of AWS's example scripts for version 2, and of its documentation.
PROGRAM = """
import sys
import torch
assert not [name for name in sys.modules if name.startswith("herringbone_parallel")]
import torch.sagemaker as tsm
import torch.sagemaker.checkpoint.utils as tsm_checkpoint
import torch.sagemaker.distributed.checkpoint.state_dict_loader as loader
import torch.sagemaker.distributed.checkpoint.state_dict_saver as saver
from torch.sagemaker import state, transform
from torch.sagemaker.delayed_param import DelayedParamIniter
from torch.sagemaker.grad_norm import clip_grad_norm_
from torch.sagemaker.logger import get_logger
from torch.sagemaker.moe.moe_config import MoEConfig
from torch.sagemaker.nn.attn import FlashGroupedQueryAttention, FlashSelfAttention
from torch.sagemaker.nn.huggingface.llama_flashattn import LlamaFlashAttention
from torch.sagemaker.state_handler import state as same
from torch.sagemaker.tensor_parallel.transformer import TransformerLayer
from torch.sagemaker.utils import utils as tsm_utils
from torch.sagemaker.utils.module_utils import empty_module_params, move_buffers_to_device
from torch.sagemaker.utils.process_group_utils import get_global_ranks
import herringbone_parallel.torch.sharding.api as ours
assert tsm.__all__ == ours.__all__ and all(getattr(tsm, name) is getattr(ours, name) for name in ours.__all__)
assert same is state and not tsm.is_initialized() and not isinstance(torch.nn.Linear(1, 1), TransformerLayer)
assert [saver.save, saver.async_save, saver.maybe_finalize_async_calls, loader.load, tsm_checkpoint.SORT_BY_LAST_INT]
for call in (lambda: state.tp_size, tsm.init):
    try: call()
    except Exception as error: print(type(error).__name__, error)
"""


def run(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment | variables, capture_output=True, text=True, check=False
    )


def test_the_names_of_aws_s_scripts_are_there_and_a_rank_without_them_loads_nothing() -> None:
    answer = run(PROGRAM, PYTHONPATH=str(SHIM))
    assert answer.returncode == 0, answer.stderr
    first, second = answer.stdout.splitlines()
    assert first == "ParallelError torch.sagemaker.init() has not been called; call it first in the script"
    assert second.startswith("ParallelError RANK is not set: this process was not launched as a rank")


def test_other_processes_do_not_have_it_and_a_real_one_wins(tmp_path: Path) -> None:
    program = (
        "import torch, sys\ntry: import torch.sagemaker as it; print(it.__file__)\nexcept ImportError as e: print(e)"
    )
    assert run(program).stdout.strip() == "No module named 'torch.sagemaker'"
    (tmp_path / "sagemaker").mkdir()
    (tmp_path / "sagemaker" / "__init__.py").touch()
    # An image whose torch has the folder: torch's own folder comes first in its path.
    real = program.replace("import torch, sys", f"import torch, sys\ntorch.__path__.insert(0, {str(tmp_path)!r})")
    assert run(real, PYTHONPATH=str(SHIM)).stdout.strip() == str(tmp_path / "sagemaker" / "__init__.py")
