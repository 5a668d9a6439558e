"""The reducer: averages gradients over the replicas of a pipeline while the last backwards still run.

torch's own reducer considers a gradient final at the first addition in a backward. Here a step adds to each gradient
many times: once per microbatch and visit. So the reducer counts. A gradient is considered final after as many additions
as in the steps before. When all gradients of a bucket are final, the bucket is reduced, in an order that is the same on
every replica. If more additions follow, the bucket is late and is reduced a second time: a wrong guess costs time and
never changes the result.

    [1] during the backward   `_on_gradient` starts bucket 0, bucket 1, ...
    [2] after the backward    `_finish` starts the other buckets
    [3]                       `_conclude` sums the votes, and reduces the late buckets again
    [4]                       the averages are written into `.grad`

The votes report which parameters any replica has used, which buckets are late anywhere, and which replicas have not
ended. The methods run in the thread that calls the step, except `expect` and `_on_gradient`. These run in the thread of
the microbatch that holds the run token, or in autograd's thread of a CUDA device while that microbatch waits for it. So
no two of them run at the same time, and there is no lock.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.sums.buckets import cut_buckets
from herringbone_parallel.torch.bucket import Bucket, GradBucket
from herringbone_parallel.torch.model_parallel.replicas.options import CommHook, Future, ReductionOptions, Uneven

NamedParameters = Callable[[], Iterable[tuple[str, nn.Parameter]]]

_MEBIBYTE = 1 << 20
_FIRST_BUCKET_BYTES = 1 << 20


class Peers(Protocol):
    """The part of `Replicas` that the reducer uses."""

    @property
    def size(self) -> int: ...
    @property
    def index(self) -> int: ...
    def start_sum(self, tensor: torch.Tensor) -> Future: ...
    def wait(self, future: Future) -> Any: ...
    def take_after(self, index: int, tensors: list[torch.Tensor]) -> None: ...
    def gather(self, number: int) -> dict[int, int]: ...
    def check(self) -> None: ...
    def report(self, failure: BaseException) -> None: ...


class Reducer:
    """Averages the gradients of this rank's parameters over `peers`, in buckets.

        reducer = Reducer(replicas, model.local_named_parameters, ReductionOptions())
        with reducer.step():
            ...                         # forwards and backwards; reducer.expect() before a backward
        ...                             # now the gradients are averaged

    `named_parameters` returns this rank's parameters with their names. With `hook`, `hook.function(hook.state, bucket)`
    averages a bucket instead. Raises `ParallelError` when the replicas' parameters or options differ.
    """

    def __init__(
        self,
        peers: Peers,
        named_parameters: NamedParameters,
        options: ReductionOptions,
        hook: CommHook | None = None,
    ) -> None:
        self._peers = peers
        self._named_parameters = named_parameters
        self._options = options
        self.hook = hook
        self.uneven: Uneven | None = None
        # The replicas that had batches left in the last reduction: the same list on all of them.
        self.active = list(range(peers.size))
        self._handles: list[Any] = []
        self._parameters: list[nn.Parameter] = []
        self._buckets: list[Bucket] = []
        self._bucket_of: list[Bucket] = []
        # Three counts by parameter: additions in a step, the most so far; additions in this step; the number of the
        # newest addition, counted over all parameters.
        self._usual: list[int] = []
        self._added: list[int] = []
        self._last_added: list[int] = []
        self._additions = 0
        # By parameter: True if it was added to since the last reduction.
        self._used: list[bool] = []
        # False until the buckets are cut in the order in which gradients become final.
        self._ordered = False
        self._passes = 0
        self._backward_expected = False
        # True while buckets may start during the backward, [1].
        self._eager = False
        # By bucket: parameters that are not final yet.
        self._missing: list[int] = []
        # The futures of the buckets that have started, in the order of the buckets.
        self._under_way: list[Future] = []
        self._late: set[int] = set()
        self._watch_parameters()

    @property
    def buckets(self) -> list[Bucket]:
        """The buckets, in the order in which they are reduced."""
        return list(self._buckets)

    def expect(self) -> None:
        """Note that this step has a backward, so that it ends with a reduction."""
        self._backward_expected = True

    def check_reduced(self) -> None:
        """Raise `ParallelError` for an update by gradients that are not reduced yet: replicas would differ from it."""
        passes = self._options.backward_passes_per_step
        if done := self._passes % passes:
            raise ParallelError(
                f"optimizer.step() after {done} of {passes} backward_passes_per_step: the gradients are not averaged"
                f" over the replicas yet. Call it after every {passes} steps, and leave out the last ones of an epoch"
                " that are fewer; or leave backward_passes_per_step out"
            )

    def backward_ended(self) -> None:
        """Note that the backward of a microbatch has ended; nothing follows from that here."""

    @contextmanager
    def step(self) -> Iterator[None]:
        """Reduce the gradients that the `with` block adds up; a failure in it is reported to the other replicas."""
        self._peers.check()
        try:
            self._begin()
            yield
            with torch.no_grad():
                reduced = self._finish()
        except BaseException as failure:
            self._peers.report(failure)
            raise
        # Outside of the `try`: every replica finds this by itself from the same votes.
        if reduced:
            self._refuse_uneven()

    def _begin(self) -> None:
        # A script may freeze or replace parameters between steps.
        trained = [id(parameter) for _, parameter in self._named_parameters() if parameter.requires_grad]
        if trained != [id(parameter) for parameter in self._parameters]:
            self._watch_parameters()
        self._backward_expected = False
        # A step that failed, or had no reduction, leaves counts and futures that must not count for this step.
        self._added = [0] * len(self._parameters)
        self._late.clear()
        self._under_way = []
        self._missing = [0] * len(self._buckets)
        # A parameter that was never used so far is not waited for: its bucket may be late if that changes.
        for bucket, usual in zip(self._bucket_of, self._usual, strict=True):
            self._missing[bucket.index] += usual > 0
        # Gradients that are views of their bucket must not leave early: they are added to while the sum is on its way.
        due = (self._passes + 1) % self._options.backward_passes_per_step == 0
        overlap = self._options.overlapping_allreduce and not self._options.gradient_as_bucket_view
        self._eager = due and overlap and self._ordered

    def retire(self) -> None:
        """Stop watching the parameters: their hooks reference the reducer, and through it the process group."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _watch_parameters(self) -> None:
        """Watch the parameters that are trained now. The first buckets reverse the order of their definition."""
        # Not a subclass's `retire`, which removes hooks that are to stay.
        Reducer.retire(self)
        named = list(self._named_parameters())
        require_equal(self._peers, named, self._options)
        self._parameters = [parameter for _, parameter in named if parameter.requires_grad]
        count = len(self._parameters)
        self._usual, self._added, self._last_added = [0] * count, [0] * count, [0] * count
        self._used = [parameter.grad is not None for parameter in self._parameters]
        self._ordered = False
        self._cut_buckets(list(range(count))[::-1])
        self._handles = [
            parameter.register_post_accumulate_grad_hook(partial(self._on_gradient, index))  # type: ignore[no-untyped-call]
            for index, parameter in enumerate(self._parameters)
        ]

    def _cut_buckets(self, order: list[int]) -> None:
        """Divide the parameters, in this order of their indices, into buckets."""
        ordered = [self._parameters[index] for index in order]
        sizes = [((p.dtype, p.device), p.numel() * p.element_size()) for p in ordered]
        most = max(1, int(self._options.bucket_cap_mb * _MEBIBYTE))
        cuts = cut_buckets(sizes, first_bytes=min(_FIRST_BUCKET_BYTES, most), most_bytes=most)
        as_views = self._options.gradient_as_bucket_view
        self._buckets = [Bucket(n, [ordered[i] for i in indices], as_views=as_views) for n, indices in enumerate(cuts)]
        by_id = {id(parameter): bucket for bucket in self._buckets for parameter in bucket.parameters}
        self._bucket_of = [by_id[id(parameter)] for parameter in self._parameters]

    def _on_gradient(self, index: int, parameter: torch.Tensor) -> None:
        """Count an addition to a gradient, and start buckets that are final. Called inside the backward, [1]."""
        bucket = self._bucket_of[index]
        self._used[index] = True
        self._added[index] += 1
        self._additions += 1
        self._last_added[index] = self._additions
        # A bucket is one dense buffer.
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise ParallelError(
                "a sparse gradient cannot be averaged over replicas; make the embedding with sparse=False"
            )
        bucket.adopt(parameter)
        if bucket.index < len(self._under_way):
            self._late.add(bucket.index)
        elif self._eager and self._added[index] == self._usual[index]:
            self._missing[bucket.index] -= 1
            # Only in the order of the buckets: every replica must start the same sums in the same order.
            while len(self._under_way) < len(self._buckets) and self._missing[len(self._under_way)] == 0:
                self._start(self._buckets[len(self._under_way)])

    def _start(self, bucket: Bucket) -> None:
        with torch.no_grad():
            bucket.fill()
            self._under_way.append(self._reduced(bucket))

    def _reduced(self, bucket: Bucket) -> Future:
        if self.hook is None:
            # Before the sum: in float16 the sum of undivided gradients may overflow.
            bucket.buffer.div_(self._peers.size)
            return self._peers.start_sum(bucket.buffer)
        future = self.hook.function(self.hook.state, GradBucket(bucket, is_last=bucket.index == len(self._buckets) - 1))
        # The base class, because `Future.then` returns it.
        if not isinstance(future, torch._C.Future):
            raise ParallelError(
                f"the communication hook returned a {type(future).__qualname__}; it has to return a"
                " torch.futures.Future of the averaged gradients, as torch's ddp_comm_hooks do"
            )
        return future

    def _finish(self) -> bool:
        """Reduce if a reduction is due, and say whether it was: [2] to [4]."""
        self._usual = [max(usual, added) for usual, added in zip(self._usual, self._added, strict=True)]
        self._passes += self._backward_expected
        if not self._backward_expected or self._passes % self._options.backward_passes_per_step:
            return False
        # Buckets with parameters that were used less often than usual, or not at all.
        while len(self._under_way) < len(self._buckets):
            self._start(self._buckets[len(self._under_way)])
        self._conclude(ended=False)
        return True

    def accompany(self) -> None:
        """Take part in the reductions of replicas that have batches left, adding zeros, until no replica has any."""
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
        """End the reduction whose buckets are all under way; say whether any replica has batches left: [3] and [4].

        `ended` is True on a replica without batches left, which votes so and takes no averages.
        """
        size, count = self._peers.size, len(self._parameters)
        late = [bucket.index in self._late for bucket in self._buckets]
        present = [index == self._peers.index and not ended for index in range(size)]
        # One sum of ones and zeros for all three votes: a message costs more than its few bytes.
        votes = torch.tensor([*self._used, *late, *present], dtype=torch.int32)
        total = self._peers.wait(self._peers.start_sum(votes))[0].tolist()
        active = [index for index, vote in enumerate(total[-size:]) if vote]
        wanted = {id(parameter) for parameter, vote in zip(self._parameters, total, strict=False) if vote}
        for bucket, vote in zip(self._buckets, total[count:-size], strict=True):
            result = self._peers.wait(self._under_way[bucket.index])
            if vote:
                # Late on some replica, so every replica reduces it again.
                bucket.buffer.zero_() if ended else bucket.fill()
                result = self._peers.wait(self._reduced(bucket))
            if not ended:
                rescale = self.uneven is not None and self.uneven.rescale
                bucket.write_back(result, wanted, scale=size / len(active) if rescale else 1.0)
        self._used = [False] * count
        self.active = active or self.active
        if self._parameters and not self._ordered:
            self._order_buckets()
        return bool(active)

    def _refuse_uneven(self) -> None:
        """Raise when some replicas have ended and the script did not allow that. The averages are written already."""
        ended = sorted(set(range(self._peers.size)) - set(self.active))
        if ended and (self.uneven is None or self.uneven.throw):
            raise ParallelError(
                f"replica {ended[0]} has no batches left and replica {self.active[0]} has some: "
                + ("throw_on_early_termination is set" if self.uneven else "train inside `with model.join():` on both")
            )

    def _order_buckets(self) -> None:
        """Cut the buckets again in the order in which gradients became final; unused parameters come last."""
        order = sorted(range(len(self._parameters)), key=lambda i: (self._last_added[i] == 0, self._last_added[i]))
        # Timing may differ between replicas, so all take the first one's order.
        agreed = torch.tensor(order)
        self._peers.take_after(0, [agreed])
        self._cut_buckets(agreed.tolist())
        self._ordered = True


def require_equal(peers: Peers, named: Iterable[tuple[str, nn.Parameter]], options: ReductionOptions) -> None:
    """Raise when the replicas would reduce different parameters, which no all-reduce would notice."""
    description = [(name, list(p.shape), str(p.dtype), p.requires_grad) for name, p in named]
    checksums = peers.gather(zlib.crc32(repr((description, options)).encode()))
    different = [rank for rank, checksum in checksums.items() if checksum != next(iter(checksums.values()))]
    if different:
        raise ParallelError(
            f"rank {different[0]} and rank {next(iter(checksums))} hold the same partition of two replicas, but not"
            " the same parameters, in number, name, shape, dtype or requires_grad, or not the same arguments of"
            " smp.DistributedModel. Make the model alike on every rank, and freeze the same parameters"
        )
