"""Gradients averaged over the replicas of a pipeline, while the last microbatches' backwards still run.

torch's own reducer takes a parameter for ready when its gradient is added to, once per backward. Here a step adds to it
many times: once per microbatch and visit. So a gradient is taken for final once it has been added to as often as in
the steps before; what is in a bucket then leaves, in an order that is the same on every replica. Should more come, the
bucket is reduced a second time at the end of the step: a wrong guess costs time, never the result.

    during the backward   bucket 0 leaves, bucket 1 leaves, ...
    after it              the other buckets; votes; the late buckets again

The votes say which parameters anyone has used, which buckets are late anywhere, and which replicas have not ended.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.sums.buckets import cut_buckets
from herringbone_parallel.torch.bucket import Bucket, GradBucket

Future = torch.futures.Future[Any]
# A communication hook: (state, bucket) -> a future of the averaged flat gradients.
Hook = Callable[[Any, Any], Future]
Named = Callable[[], Iterable[tuple[str, nn.Parameter]]]

_MEBIBYTE = 1 << 20
_FIRST_BUCKET_BYTES = 1 << 20


class Peers(Protocol):
    """What the reducer asks of `Replicas`."""

    @property
    def size(self) -> int: ...
    @property
    def index(self) -> int: ...
    def start_sum(self, tensor: torch.Tensor) -> Future: ...
    def wait(self, future: Future) -> Any: ...
    def take_after(self, index: int, tensors: list[torch.Tensor]) -> None: ...
    def gather(self, number: int) -> dict[int, int]: ...
    def check(self) -> None: ...
    def tell(self, failure: BaseException) -> None: ...


@dataclass(frozen=True)
class ReductionOptions:
    """The arguments of `smp.DistributedModel` about replicas.

    overlapping_allreduce     start to reduce before the backward has ended
    backward_passes_per_step  reduce in every n-th step only; gradients add up until then
    bucket_cap_mb             MiB of gradients that travel together; the first bucket has 1
    broadcast_buffers         give every replica the first one's buffers, once, when the model is partitioned
    gradient_as_bucket_view   let `.grad` be a part of its bucket, which saves a copy of all gradients; they are then
                              reduced after the backward, as what is on its way cannot be added to
    find_unused_parameters    may be set as you like: parameters that a replica has not used are always found
    """

    overlapping_allreduce: bool = True
    backward_passes_per_step: int = 1
    bucket_cap_mb: float = 25
    broadcast_buffers: bool = True
    gradient_as_bucket_view: bool = False
    find_unused_parameters: bool = False

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if option.type == "bool" and not isinstance(value, bool):
                raise ParallelError(f"smp.DistributedModel({option.name}={value!r}): it is True or False")
        passes, cap = self.backward_passes_per_step, self.bucket_cap_mb
        if isinstance(passes, bool) or not isinstance(passes, int) or passes < 1:
            raise ParallelError(f"smp.DistributedModel(backward_passes_per_step={passes!r}): it is a number from 1")
        if isinstance(cap, bool) or not isinstance(cap, (int, float)) or not cap > 0:
            raise ParallelError(f"smp.DistributedModel(bucket_cap_mb={cap!r}): it is a number of MiB above 0")


@dataclass(frozen=True)
class Uneven:
    """What to do once some replicas have no batches left: `model.join`'s arguments.

    rescale    divide by the number of replicas that have some, not by that of all
    throw      end the step with an error on all of them
    """

    rescale: bool
    throw: bool


class Reducer:
    """Averages the gradients of this rank's parameters over `peers`, in buckets.

        reducer = Reducer(replicas, model.local_named_parameters, ReductionOptions())
        with reducer.step():
            ...                         # forwards and backwards; reducer.expect() before a backward
        # here the gradients are averaged

    With `hook`, a pair (state, function), `function(state, bucket)` averages a bucket instead.
    """

    def __init__(
        self, peers: Peers, named: Named, options: ReductionOptions, hook: tuple[Any, Hook] | None = None
    ) -> None:
        self._peers = peers
        self._named = named
        self._options = options
        self.hook = hook
        self.uneven: Uneven | None = None
        # The replicas that had batches left in the last reduction: the same list on all of them.
        self.active = list(range(peers.size))
        self._handles: list[Any] = []
        self._parameters: list[nn.Parameter] = []
        self._buckets: list[Bucket] = []
        self._bucket_of: list[Bucket] = []
        # By parameter: how often it is added to in a step, at most so far; in this step; when last in this step.
        self._usual: list[int] = []
        self._added: list[int] = []
        self._last_added: list[int] = []
        self._clock = 0
        # By parameter: whether it was added to since the last reduction.
        self._used: list[bool] = []
        self._ordered = False
        self._passes = 0
        self._backward = False
        self._eager = False
        self._missing: list[int] = []
        self._under_way: list[Future] = []
        self._late: set[int] = set()
        self._adopt()

    @property
    def buckets(self) -> list[Bucket]:
        """The buckets, in the order in which they are reduced."""
        return list(self._buckets)

    def expect(self) -> None:
        """Say that this step has a backward, so that it ends with a reduction."""
        self._backward = True

    @contextmanager
    def step(self) -> Iterator[None]:
        """Reduce what is added to the gradients inside the `with` block; a failure in it is told to the others."""
        self._peers.check()
        try:
            self._begin()
            yield
            with torch.no_grad():
                reduced = self._finish()
        except BaseException as failure:
            self._peers.tell(failure)
            raise
        if reduced:
            self._refuse_uneven()

    def _begin(self) -> None:
        trained = [id(parameter) for _, parameter in self._named() if parameter.requires_grad]
        if trained != [id(parameter) for parameter in self._parameters]:
            self._adopt()
        self._backward = False
        self._added = [0] * len(self._parameters)
        self._late.clear()
        self._under_way = []
        self._missing = [0] * len(self._buckets)
        for bucket, usual in zip(self._bucket_of, self._usual, strict=True):
            self._missing[bucket.index] += usual > 0
        due = (self._passes + 1) % self._options.backward_passes_per_step == 0
        overlap = self._options.overlapping_allreduce and not self._options.gradient_as_bucket_view
        self._eager = due and overlap and self._ordered

    def retire(self) -> None:
        """Watch no parameters any more; they would keep the reducer, and its group with it."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _adopt(self) -> None:
        """Watch the parameters that are trained now: at first in the reverse of the order of their definition."""
        self.retire()
        named = list(self._named())
        self._require_equal([(name, list(p.shape), str(p.dtype), p.requires_grad) for name, p in named])
        self._parameters = [parameter for _, parameter in named if parameter.requires_grad]
        count = len(self._parameters)
        self._usual, self._added, self._last_added = [0] * count, [0] * count, [0] * count
        self._used = [parameter.grad is not None for parameter in self._parameters]
        self._ordered = False
        self._cut(list(range(count))[::-1])
        self._handles = [
            parameter.register_post_accumulate_grad_hook(partial(self._note, index))  # type: ignore[no-untyped-call]
            for index, parameter in enumerate(self._parameters)
        ]

    def _require_equal(self, description: Any) -> None:
        """Raise when the replicas would reduce different things, which no all-reduce would notice."""
        found = self._peers.gather(zlib.crc32(repr((description, self._options)).encode()))
        odd = [rank for rank, number in found.items() if number != next(iter(found.values()))]
        if odd:
            raise ParallelError(
                f"rank {odd[0]} and rank {next(iter(found))} hold the same partition of two replicas, but not the same"
                " parameters, in number, name, shape, dtype or requires_grad, or not the same arguments of"
                " smp.DistributedModel. Make the model alike on every rank, and freeze the same parameters"
            )

    def _cut(self, order: list[int]) -> None:
        chosen = [self._parameters[index] for index in order]
        sizes = [((p.dtype, p.device), p.numel() * p.element_size()) for p in chosen]
        most = max(1, int(self._options.bucket_cap_mb * _MEBIBYTE))
        cut = cut_buckets(sizes, first_bytes=min(_FIRST_BUCKET_BYTES, most), most_bytes=most)
        as_views = self._options.gradient_as_bucket_view
        self._buckets = [Bucket(n, [chosen[i] for i in indices], as_views=as_views) for n, indices in enumerate(cut)]
        by_id = {id(parameter): bucket for bucket in self._buckets for parameter in bucket.parameters}
        self._bucket_of = [by_id[id(parameter)] for parameter in self._parameters]

    def _note(self, index: int, parameter: torch.Tensor) -> None:
        """A gradient was added to; called inside the backward that did."""
        bucket = self._bucket_of[index]
        self._used[index] = True
        self._added[index] += 1
        self._clock += 1
        self._last_added[index] = self._clock
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise ParallelError(
                "a sparse gradient cannot be averaged over replicas; make the embedding with sparse=False"
            )
        bucket.adopt(parameter)
        if bucket.index < len(self._under_way):
            self._late.add(bucket.index)
        elif self._eager and self._added[index] == self._usual[index]:
            self._missing[bucket.index] -= 1
            while len(self._under_way) < len(self._buckets) and self._missing[len(self._under_way)] == 0:
                self._start(self._buckets[len(self._under_way)])

    def _start(self, bucket: Bucket) -> None:
        with torch.no_grad():
            bucket.fill()
            self._under_way.append(self._reduced(bucket))

    def _reduced(self, bucket: Bucket) -> Future:
        if self.hook is None:
            bucket.buffer.div_(self._peers.size)
            return self._peers.start_sum(bucket.buffer)
        state, hook = self.hook
        future = hook(state, GradBucket(bucket, is_last=bucket.index == len(self._buckets) - 1))
        # `then` returns the base class.
        if not isinstance(future, torch._C.Future):
            raise ParallelError(
                f"the communication hook returned a {type(future).__qualname__}; it has to return a"
                " torch.futures.Future of the averaged gradients, as torch's ddp_comm_hooks do"
            )
        return future

    def _finish(self) -> bool:
        """Reduce if it is due, and say whether it was."""
        self._usual = [max(usual, added) for usual, added in zip(self._usual, self._added, strict=True)]
        self._passes += self._backward
        if not self._backward or self._passes % self._options.backward_passes_per_step:
            return False
        while len(self._under_way) < len(self._buckets):
            self._start(self._buckets[len(self._under_way)])
        self._conclude(ended=False)
        return True

    def accompany(self) -> None:
        """Take part in the reductions of replicas that have batches left, with nothing to add, until none has any."""
        self._peers.check()
        with torch.no_grad():
            while True:
                self._under_way, self._used = [], [False] * len(self._parameters)
                self._late.clear()
                for bucket in self._buckets:
                    bucket.buffer.zero_()
                    self._under_way.append(self._reduced(bucket))
                if not self._conclude(ended=True):
                    break
                self._refuse_uneven()
        self._passes = 0

    def _conclude(self, *, ended: bool) -> bool:
        """End the reduction whose buckets are all under way; say whether any replica has batches left."""
        size, count = self._peers.size, len(self._parameters)
        late = [bucket.index in self._late for bucket in self._buckets]
        present = [index == self._peers.index and not ended for index in range(size)]
        votes = torch.tensor([*self._used, *late, *present], dtype=torch.int32)
        total = self._peers.wait(self._peers.start_sum(votes))[0].tolist()
        active = [index for index, vote in enumerate(total[-size:]) if vote]
        wanted = {id(parameter) for parameter, vote in zip(self._parameters, total, strict=False) if vote}
        for bucket, vote in zip(self._buckets, total[count:-size], strict=True):
            result = self._peers.wait(self._under_way[bucket.index])
            if vote:
                bucket.buffer.zero_() if ended else bucket.fill()
                result = self._peers.wait(self._reduced(bucket))
            if not ended:
                rescale = self.uneven is not None and self.uneven.rescale
                bucket.write_back(result, wanted, scale=size / len(active) if rescale else 1.0)
        self._used = [False] * count
        self.active = active or self.active
        if self._parameters and not self._ordered:
            self._order()
        return bool(active)

    def _refuse_uneven(self) -> None:
        """Raise when replicas have ended, and that is not to be borne; the others are as equal as before."""
        ended = sorted(set(range(self._peers.size)) - set(self.active))
        if ended and (self.uneven is None or self.uneven.throw):
            raise ParallelError(
                f"replica {ended[0]} has no batches left and replica {self.active[0]} has some: "
                + ("throw_on_early_termination is set" if self.uneven else "train inside `with model.join():` on both")
            )

    def _order(self) -> None:
        """Cut the buckets anew, now that it is known in which order gradients become final."""
        order = sorted(range(len(self._parameters)), key=lambda i: (self._last_added[i] == 0, self._last_added[i]))
        agreed = torch.tensor(order)
        self._peers.take_after(0, [agreed])
        self._cut(agreed.tolist())
        self._ordered = True
