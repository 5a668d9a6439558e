"""The full signature of an estimator, for `help()`, notebooks and `inspect.signature`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inspect import Signature


class ExplicitSignature:
    """Write `**options` out in the signature of a class.

    class Estimator:
        __signature__ = ExplicitSignature()

    Nothing is computed before somebody asks. A subclass with a constructor of its own keeps its own signature.
    """

    def __get__(self, instance: object, owner: type) -> Signature:
        from herringbone.plan.options.reference import signature_of

        signature = signature_of(owner)
        if signature is None:
            # `inspect` then reads the constructor.
            raise AttributeError("__signature__")
        return signature
