"""Python objects between ranks, pickled: a rank unpickles only what a rank of this job has sealed.

    everyone = all_gather_objects(engine, {"rank": engine.rank})

Unpickling runs code that the bytes name, and sums travel without a MAC. So each object carries one (HMAC-SHA256), with
a key that the job's token and a nonce of every rank make, and a number that counts the calls.
"""

from __future__ import annotations

import hashlib
import hmac
import pickle
import secrets
import struct
import weakref
from typing import Any

import numpy as np

from herringbone_contract.errors import ParallelError
from herringbone_parallel.reduce.collectives import all_gather, broadcast
from herringbone_parallel.reduce.engine import Engine

_MAC_BYTES = hashlib.sha256().digest_size
_NONCE_BYTES = 16
_POSITION = struct.Struct("<QI")


class Seal:
    """Seals and opens the objects of one engine; each rank makes one, and seals and opens in the same order.

    >>> seal = Seal(b"key")
    >>> Seal(b"key").open(seal.seal({"epoch": 3}, rank=1), rank=1)
    {'epoch': 3}
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        # The number of collectives before this one, which is the same on all ranks.
        self.number = 0

    def seal(self, obj: Any, rank: int) -> bytes:
        """Return the pickled object of this rank, behind its MAC."""
        data = pickle.dumps(obj)
        return self._mac(data, rank) + data

    def open(self, sealed: bytes, rank: int) -> Any:
        """Return the object of a rank; raises `ParallelError` for bytes that this rank has not sealed for this call."""
        data = sealed[_MAC_BYTES:]
        if not hmac.compare_digest(sealed[:_MAC_BYTES], self._mac(data, rank)):
            raise ParallelError(
                f"the object of rank {rank} was changed on its way: something between the hosts writes into the"
                " connections of the sums"
            )
        return pickle.loads(data)  # noqa: S301  a rank of this job has sealed it

    def _mac(self, data: bytes, rank: int) -> bytes:
        return hmac.digest(self._key, _POSITION.pack(self.number, rank) + data, hashlib.sha256)


# An engine's seal is made at its first object, because that takes a collective.
_seals: weakref.WeakKeyDictionary[Engine, Seal] = weakref.WeakKeyDictionary()


def all_gather_objects(engine: Engine, obj: Any) -> list[Any]:
    """Return the objects of all ranks, in the order of ranks; raises `ParallelError` if one was changed on its way."""
    seal = _seal_of(engine)
    parts = all_gather(engine, seal.seal(obj, engine.rank))
    objects = [seal.open(part, rank) for rank, part in enumerate(parts)]
    seal.number += 1
    return objects


def broadcast_object(engine: Engine, obj: Any, root: int) -> Any:
    """Return the root's object on all ranks; raises `ParallelError` if it was changed on its way."""
    seal = _seal_of(engine)
    is_root = engine.rank == root
    data = np.frombuffer(seal.seal(obj, root), np.uint8).copy() if is_root else np.empty(0, np.uint8)
    length = np.array([len(data)], np.int64)
    # The length first, because the other ranks have to allocate the array.
    broadcast(engine, length, root)
    if not is_root:
        data = np.empty(int(length[0]), np.uint8)
    broadcast(engine, data, root)
    result = obj if is_root else seal.open(data.tobytes(), root)
    seal.number += 1
    return result


def _seal_of(engine: Engine) -> Seal:
    if engine not in _seals:
        # Every rank's nonce is in the key, so no rank accepts what was sealed in another run.
        nonces = all_gather(engine, secrets.token_bytes(_NONCE_BYTES))
        key = hmac.digest(engine.settings.token, b"objects\0" + b"".join(nonces), hashlib.sha256)
        _seals[engine] = Seal(key)
    return _seals[engine]
