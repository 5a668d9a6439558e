"""Record optimizer steps of frameworks without torch, from NumPy's arrays; see `rehearsal.records.Step`.

A framework's own module watches the script, and calls:

    recorder.batch(arrays)                  [1] the samples of a step: the first dimension counts them
    with recorder.step(optimizer, facts):   [2] a step: `facts` are taken before it, and the record is sent behind it
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from herringbone_contract.rehearsal.records import LOCAL, WHOLE, Step, Tensor
from herringbone_contract.rehearsal.sending import Sender, place
from herringbone_parallel.position import random_numbers

Array = np.ndarray[Any, Any]
# More samples of one batch than that are one digest.
_MAX_SAMPLES = 4096


class Facts(NamedTuple):
    """The facts before a step. `own` are the names of tensors that may differ between ranks.

    `random` are digests of the numbers of the framework: a step that changes one `draws`.
    """

    tensors: Mapping[str, Array]
    own: frozenset[str]
    state: Mapping[str, Sequence[Array]]
    settings: dict[str, Any]
    random: Callable[[], dict[str, str]] = dict
    draws: bool = False


class Recorder:
    """Collects what is known of a step, and sends it; an error in here becomes a text in the record."""

    def __init__(self) -> None:
        self.begin(Sender().send)
        # A child that trains is a process of its own.
        os.register_at_fork(after_in_child=lambda: self.begin(Sender().send))

    def begin(self, send: Callable[[Step, int | None], object]) -> None:
        """Count steps from 1 on, and send them by a function."""
        self._send, self._count = send, 0
        self._optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._clear()

    def _clear(self) -> None:
        self._samples: list[str] = []
        self._batches: list[list[str]] = []
        self._missing: dict[str, None] = {}

    @contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Compute something for the record; what fails is named there."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a rehearsal must not end a script
            self._missing[f"{what}: {type(error).__name__}: {error}".partition(". ")[0][:200]] = None

    def batch(self, arrays: Callable[[], Sequence[Array]]) -> None:
        """Take a batch that the next step uses. [1]"""
        with self.noting("samples"):
            batch = [np.ascontiguousarray(array) for array in arrays()]
            self._samples += _samples(batch)
            self._batches.append(["", *map(digest, batch)])

    @contextmanager
    def step(self, optimizer: Any, facts: Callable[[], Facts]) -> Iterator[None]:
        """Record the step that is made inside. [2]"""
        begun: dict[str, Any] = {}
        known: Facts | None = None
        with self.noting("weights"):
            known = facts()
            begun["tensors"] = {
                name: _tensor(array, LOCAL if name in known.own else WHOLE) for name, array in known.tensors.items()
            }
            begun["state"] = {kind: digest(*arrays) for kind, arrays in known.state.items()}
            begun["settings"] = known.settings
            before = known.random()
            begun["random"] = {**before, **_process()}
        yield
        with self.noting("random numbers"):
            begun["draws"] = known is not None and (known.draws or known.random() != before)
        self._count += 1
        rank, ranks = place()
        number = self._optimizers.setdefault(optimizer, len(self._optimizers))
        begun |= {"samples": self._samples, "batches": self._batches, "missing": [*self._missing]}
        step = Step(self._count, number, ranks, **begun)
        self._clear()
        self._send(step, rank)


def digest(*arrays: Array) -> str:
    """Return a digest of the bits of arrays.

    >>> digest(np.array([1.0, 2.0])) == digest(np.array([2.0, 1.0]))
    False
    """
    hashed = blake2b(digest_size=8)
    for array in arrays:
        hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()


def _tensor(array: Array, where: str) -> Tensor:
    values = array.astype(np.float64)
    squares, total = float(np.square(values).sum()), float(values.sum())
    return Tensor(
        digest(array),
        squares if np.isfinite(squares) else None,
        total if np.isfinite(total) else None,
        array.size,
        where,
    )


def _samples(batch: list[Array]) -> list[str]:
    """Return a digest of each sample: of its part of each array, and of whole arrays of another length."""
    count = next((len(array) for array in batch if array.ndim), 1)
    if count > _MAX_SAMPLES:
        return [digest(*batch)]
    parts = [array if array.ndim and len(array) == count else [array] * count for array in batch]
    return [digest(*sample)[:12] for sample in zip(*parts, strict=True)]


def _process() -> dict[str, str]:
    """Return digests of Python's and NumPy's random numbers."""
    states = random_numbers.remember()()
    digests = (blake2b(repr(state).encode(), digest_size=8).hexdigest() for state in states)
    return dict(zip(("python", "numpy"), digests, strict=True))
