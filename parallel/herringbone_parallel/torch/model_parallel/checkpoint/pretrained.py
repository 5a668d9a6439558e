"""Reads weights that Hugging Face's `save_pretrained` wrote, where a checkpoint of `torch.save` was expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.model_parallel import local_parts

# The Trainer names the first file when it resumes, and has written the second one since transformers 4.35.
_TORCH_FILE, _SAFE_FILE = "pytorch_model.bin", "model.safetensors"


def safetensors_of(path: Path) -> Path | None:
    """Return the safetensors file in place of a missing file of weights, None if there is none."""
    safe = path.with_name(_SAFE_FILE)
    return safe if path.name == _TORCH_FILE and not path.exists() and safe.exists() else None


def read_safetensors(path: Path, module: nn.Module) -> dict[str, Any]:
    """Return a state dict for the module from a safetensors file, which has each tied parameter under one name only.

    Raises `ParallelError` for a damaged file.
    """
    # transformers brings it, and without transformers there are no such files.
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights: dict[str, Any] = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ParallelError(f"{path} cannot be read; it may be truncated: {error}") from error
    return local_parts.tie(weights, module)
