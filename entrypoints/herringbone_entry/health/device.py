"""Multiply matrices on each device, and compare the product with its table. All elements are small whole numbers.

Every type of number holds them, and the sums of their products, without rounding. A device that differs is broken.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

# The factors repeat themselves after so many rows and columns. With 256 products a sum is at most 1,536 (fp16
# holds 2,048).
_PERIOD, _INNER = 16, 256
_LEFT = [[(3 * row + 5 * inner) % 7 - 3 for inner in range(_PERIOD)] for row in range(_PERIOD)]
_RIGHT = [[(2 * inner + 3 * column) % 5 - 2 for column in range(_PERIOD)] for inner in range(_PERIOD)]
_WIDTHS = {"cuda": 8192, "cpu": 512}
_TYPES = {"cuda": ("float32", "float16"), "cpu": ("float32",)}
_REPEATS = 3


def table() -> list[list[int]]:
    """Return the elements of the product's first rows and columns; the others repeat them.

    >>> table()[0][:4]
    [16, -192, 160, -128]
    """
    columns = list(zip(*_RIGHT, strict=True))
    times = _INNER // _PERIOD
    return [[times * sum(a * b for a, b in zip(row, column, strict=True)) for column in columns] for row in _LEFT]


def examine(torch: Any) -> dict[str, Any]:
    """Return the part of a host's report that torch measures."""
    count = torch.cuda.device_count() if torch.version.cuda else 0
    places = [("cuda", number) for number in range(count)] or [("cpu", 0)]
    report = {"devices": [_device(torch, *place) for place in places], "backend": "nccl" if count else "gloo"}
    return {**report, "answering": count} if torch.version.cuda else report


def _device(torch: Any, kind: str, number: int) -> dict[str, Any]:
    device: dict[str, Any] = {"name": kind, "wrong": 0, "seconds": 0.0, "error": ""}
    try:
        if kind == "cuda":
            device["name"] = torch.cuda.get_device_name(number)
        for dtype in _TYPES[kind]:
            wrong, seconds = multiply(torch, f"{kind}:{number}", getattr(torch, dtype), _WIDTHS[kind])
            device["wrong"] += wrong
            # Only GPUs of one name are alike.
            device["seconds"] += seconds if kind == "cuda" else 0.0
    except Exception as error:  # noqa: BLE001 - the errors of a broken device have any class
        device["error"] = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    return device


def multiply(
    torch: Any, place: str, dtype: Any, width: int, product: Callable[[Any, Any], Any] | None = None
) -> tuple[int, float]:
    """Return how many elements of the product differ from the table, and the least seconds that it took."""
    product = product or torch.matmul
    left, right, expected = (
        torch.tensor(values, dtype=dtype, device=place).repeat(rows // _PERIOD, columns // _PERIOD)
        for values, rows, columns in ((_LEFT, width, _INNER), (_RIGHT, _INNER, width), (table(), width, width))
    )
    times, wrong = [], 0
    for _ in range(1 + _REPEATS):
        begin = time.perf_counter()
        result = product(left, right)
        if place != "cpu:0":
            torch.cuda.synchronize(place)
        times.append(time.perf_counter() - begin)
        wrong = max(wrong, int((result != expected).sum()))
    return wrong, min(times)
