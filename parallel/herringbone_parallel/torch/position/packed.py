"""Small tensors as a message carries them: the type, the shape and the bytes."""

from __future__ import annotations

import torch

from herringbone_parallel.torch.position.random_state import to_bytes

Packed = tuple[str, list[int], bytes]


def packed(tensor: torch.Tensor) -> Packed:
    """Return the message of a tensor.

    >>> unpacked(packed(torch.ones(2, 1)))
    tensor([[1.],
            [1.]])
    """
    flat = tensor.detach().contiguous().reshape(-1)
    content = to_bytes(flat.view(torch.uint8)) if flat.numel() else b""
    return str(tensor.dtype).removeprefix("torch."), list(tensor.shape), content


def unpacked(message: Packed) -> torch.Tensor:
    """Return the tensor of a message, on the CPU."""
    name, shape, content = message
    dtype = getattr(torch, name)
    return (torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0, dtype=dtype)).reshape(
        shape
    )
