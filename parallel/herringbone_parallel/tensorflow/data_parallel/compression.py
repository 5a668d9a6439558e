"""Compression of gradients before they travel."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class NoneCompressor:
    """Leaves gradients unchanged."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Return the tensor to send, and the context for `decompress`."""
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, context: Any) -> tf.Tensor:  # noqa: ARG004
        """Return the tensor that `compress` received, as far as it can be restored."""
        return tensor


class FP16Compressor:
    """Sends floating point of 32 and 64 bits in 16 bits: sums are taken in fp32 and rounded to fp16 again."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Return the tensor in fp16, and its original type."""
        if tensor.dtype in (tf.float32, tf.float64):
            return tf.cast(tensor, tf.float16), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, context: Any) -> tf.Tensor:
        """Return the tensor in its original type."""
        return tensor if context is None else tf.cast(tensor, context)


class Compression:
    """Choices for the argument `compression`.

        tape = sdp.DistributedGradientTape(tape, compression=sdp.Compression.fp16)

    The setting `wire` of the job's `distribution` halves the bytes, too, and keeps fp32 on both ends and for the sums.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
