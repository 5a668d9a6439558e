"""Digests of tensors' bits, computed where the tensors are: equal on every device, in any number of threads.

    bits, as integers x      | x0 x1 x2 ... of one row |
    digest                   sum of x[i] * w[i] modulo 2^64, with fixed odd weights w that repeat every 2^18 elements

Sums of integers do not depend on their order. Zeros at the end of a row change nothing, so that padding by zeros does
not either. Source for the sum: D. Lemire, O. Kaser, "Strongly universal string hashing is fast", 2014.
"""

from __future__ import annotations

import functools
import math

import torch

_PERIOD = 1 << 18
# Elements of one block: a CPU's cache, or a part of a GPU's memory.
_CPU_BLOCK, _BLOCK = 1 << 18, 1 << 24
_GOLDEN = 0x9E3779B97F4A7C15
_TYPES = {1: torch.uint8, 2: torch.int16}


def digest(tensor: torch.Tensor) -> torch.Tensor:
    """Return the digest of all bits of a dense tensor, as a tensor without dimensions on its device.

    >>> int(digest(torch.tensor([1.0, 2.0]))) == int(digest(torch.tensor([2.0, 1.0])))
    False
    """
    flat = _bits(tensor.reshape(1, -1))[0]
    whole = flat.numel() // _PERIOD * _PERIOD
    if not whole:
        return _rows(flat.view(1, -1))[0]
    rows = [_rows(flat[:whole].view(-1, _PERIOD)), _rows(flat[whole:].view(1, -1))]
    return _rows(torch.cat(rows).view(torch.int32).view(1, -1))[0]


def sample_digests(tensor: torch.Tensor) -> torch.Tensor:
    """Return a digest of each sample of a batch, whose first dimension counts them.

    >>> first, second, third = sample_digests(torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]])).tolist()
    >>> first == third, first == second
    (True, False)
    """
    return _rows(_bits(tensor.reshape(tensor.shape[0], math.prod(tensor.shape[1:]))))


def joined(digests: list[torch.Tensor]) -> torch.Tensor:
    """Return one digest for several of equal shapes, in their order."""
    weights = _weights(digests[0].device)
    return torch.stack([digest * weights[number] for number, digest in enumerate(digests)]).sum(0)


def sums(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares and the sum of a tensor's elements, in double precision: two elements."""
    flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)
    totals = torch.zeros(2, dtype=torch.float64, device=flat.device)
    for part in torch.split(flat, _block(flat)):
        double = part.double()
        totals += torch.stack([double.square().sum(), double.sum()])
    return totals


def _bits(matrix: torch.Tensor) -> torch.Tensor:
    """Return the elements of a matrix as integers of at most 32 bits: of longer ones, a sum would lose high bits."""
    if matrix.is_complex():
        matrix = torch.view_as_real(matrix.resolve_conj()).flatten(1)
    return matrix.resolve_neg().contiguous().view(_TYPES.get(matrix.element_size(), torch.int32))


def _rows(matrix: torch.Tensor) -> torch.Tensor:
    totals = torch.zeros(len(matrix), dtype=torch.int64, device=matrix.device)
    weights = _weights(matrix.device)
    for number, columns in enumerate(torch.split(matrix, _PERIOD, 1)):
        height = max(1, _block(matrix) // max(1, columns.shape[1]))
        scale = _signed(_GOLDEN ** (2 * number + 1))
        parts = [(rows.long() * weights[: columns.shape[1]]).sum(1) for rows in torch.split(columns, height)]
        totals += torch.cat(parts) * scale if parts else 0
    return totals


def _block(tensor: torch.Tensor) -> int:
    return _CPU_BLOCK if tensor.device.type == "cpu" else _BLOCK


@functools.cache
def _weights(device: torch.device) -> torch.Tensor:
    # Odd numbers of 64 bits, as SplitMix64 makes them: no generator of the script is asked.
    numbers = torch.arange(1, _PERIOD + 1, device="cpu") * _signed(_GOLDEN)
    numbers = (numbers ^ (numbers >> 30 & (1 << 34) - 1)) * _signed(0xBF58476D1CE4E5B9)
    return (numbers | 1).to(device)


def _signed(number: int) -> int:
    number &= (1 << 64) - 1
    return number - (1 << 64) * (number >> 63)
