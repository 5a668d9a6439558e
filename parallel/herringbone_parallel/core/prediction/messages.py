"""Computes the memory of a pipeline's messages: values that have arrived, and sends that no peer has answered."""

from __future__ import annotations

from collections.abc import Sequence

from herringbone_parallel.core.prediction.stages import Message

# Messages of a pipeline on CPUs: the receive buffer, the content that is copied out of it, and the bytes after which a
# peer says that they have arrived.
_INLINE, _TINY, _ANSWERED = (1 << 19) + 192, 1 << 15, 1 << 20
# On GPUs: about the bytes of sends that are not released yet.
_SENT = 12 << 20


def messages_of(
    messages: Sequence[Message], index: int, *, live: int, microbatches: int, ranks: int
) -> tuple[float, float]:
    """Return the bytes of messages that a partition's rank holds while microbatches pass, and in the update.

    They are received values, and sends of which the peer has not said that they have arrived. `ranks` is the number of
    ranks of the pipeline for tensors in the host's memory, and 0 for those of a GPU. In the host's memory a message up
    to 512 KiB arrives in a buffer of that size, and stays there unless it is tiny. Each microbatch that is live
    anywhere may have sent its values ahead; gradients are answered by values until there are no more.
    Source: torch.model_parallel.runtime.transport.
    """

    def held(size: int) -> int:
        return _INLINE if ranks and _TINY <= size <= _INLINE else size

    received = sum(held(message.forward_bytes) for message in messages if message.target == index)
    returned = max((held(message.backward_bytes) for message in messages if message.source == index), default=0)
    values = [message.forward_bytes for message in messages if message.source == index]
    gradients = [message.backward_bytes for message in messages if message.target == index]
    buffers = max(ranks - 1, 0) * _INLINE
    if not ranks:
        sent = float(min(2 * (sum(values) + sum(gradients)) * microbatches, _SENT))
        return live * received + returned + sent, sent
    # Larger messages than fit behind a header have left at the end of a step.
    unanswered = sum(_unanswered(size, live) for size in gradients if size <= _INLINE)
    passing = live * received + returned + sum(_unanswered(size, live) for size in (*values, *gradients))
    return float(buffers + passing), float(buffers + unanswered)


def _unanswered(size: int, count: int) -> int:
    """Return the bytes of so many messages that are held at once until the peer answers.

    >>> _unanswered(1 << 10, 4), _unanswered(1 << 20, 4)
    (4096, 1048576)
    """
    return min(size * count, max(size, _ANSWERED))
