"""Limits of calls and of jobs: how often a key calls, each signed call once, and how much runs at once.

Pure: the caller gives the time.

Calls are answered in threads, so all classes may be used by several at once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from herringbone.serve.errors import over_limit, too_often
from herringbone.serve.settings import Mapping
from herringbone.serve.signing.signature import SKEW_SECONDS

# Two equal reads of one client within one second have the same signature, and arrive within this time.
_REPEAT_SECONDS = 5.0


@dataclass
class Rate:
    """A bucket of tokens: `per_second` come in, `burst` fit, each call takes one.

    >>> rate = Rate(per_second=1, burst=2)
    >>> [rate.take(now) for now in (0.0, 0.0, 0.0, 1.0)]
    [True, True, False, True]
    """

    per_second: float
    burst: float
    _tokens: float | None = None
    _at: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def take(self, now: float) -> bool:
        """Take a token; return False when there is none."""
        with self._lock:
            tokens = self.burst if self._tokens is None else self._tokens + max(0.0, now - self._at) * self.per_second
            self._at, self._tokens = now, min(self.burst, tokens)
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True


@dataclass
class Replays:
    """The signatures that were accepted, for as long as their time stamp is valid.

    `started` is when this memory began: an older signature may have been used before, so it changes nothing any more.
    `skew_seconds` is how far the clock of a client may be off.
    """

    started: float = 0.0
    skew_seconds: int = SKEW_SECONDS
    _seen: OrderedDict[str, float] = field(default_factory=OrderedDict)
    # Two copies of one signed change that arrive together must not both find it new.
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def check(self, signature: str, signed_at: float, now: float, *, changes: bool) -> None:
        """Note a signature; raise `ApiError` for one that comes again.

        >>> replays = Replays()
        >>> replays.check("a", 100.0, 100.0, changes=False), replays.check("a", 100.0, 101.0, changes=False)
        (None, None)

        A call that only reads may come twice within 5 seconds: clients that sign two equal calls within one second
        send the same bytes. A client that repeats a call later signs it again, as the error asks it to do.
        """
        first = self._note(signature, now)
        is_replay = first is not None and (changes or now - first > _REPEAT_SECONDS)
        if is_replay:
            raise too_often("this signed request was received before; sign it again")
        if changes and int(signed_at) < int(self.started):
            raise too_often(
                "this request was signed before the service started, which may have received it already; sign it again,"
                " and check the clock of your machine if that does not help"
            )

    def is_new(self, signature: str, signed_at: float, now: float) -> bool:
        """Note a signature, and report whether it has certainly not come before."""
        return self._note(signature, now) is None and int(signed_at) >= int(self.started)

    def _note(self, signature: str, now: float) -> float | None:
        """Note a signature, and return when it came first; None for a new one."""
        with self._lock:
            while self._seen and next(iter(self._seen.values())) < now - 2 * self.skew_seconds:
                self._seen.popitem(last=False)
            first = self._seen.get(signature)
            self._seen.setdefault(signature, now)
            return first

    def __len__(self) -> int:
        return len(self._seen)


@dataclass(frozen=True, slots=True)
class Use:
    """One user's running or wanted jobs: `jobs` at once, each with `hosts`, types with their numbers.

    A tuning job uses as much as its trials that may run at once, from its creation to its end. So no trial waits for
    hosts that others have, and a search that never fits is refused before it begins.
    """

    owner: str
    hosts: Sequence[tuple[str, int]]
    jobs: int = 1


def check_limits(wanted: Use, running: Iterable[Use], mapping: Mapping) -> None:
    """Raise `ApiError` (ResourceLimitExceeded) where the user's quota or a type's hosts do not suffice.

    >>> check_limits(Use("ada", [("ml.m5.large", 1)]), [], Mapping())
    """
    running = list(running)
    quota = mapping.quota(wanted.owner)
    own = sum(use.jobs for use in running if use.owner == wanted.owner)
    if quota is not None and own + wanted.jobs > quota.jobs:
        more = "" if wanted.jobs == 1 else f", wants {wanted.jobs} more at once"
        raise over_limit(f"{wanted.owner} has {own} running training jobs{more}, and may have {quota.jobs}")
    used: dict[str, int] = {}
    for use in running:
        for kind, count in use.hosts:
            pattern = mapping.type_pattern(kind)
            used[pattern] = used.get(pattern, 0) + count * use.jobs
    for kind, count in wanted.hosts:
        host_type, delta = mapping.host_type(kind), count * wanted.jobs
        pattern = mapping.type_pattern(kind)
        if host_type is None or host_type.hosts is None:
            continue
        used[pattern] = used.get(pattern, 0) + delta
        if used[pattern] > host_type.hosts:
            raise over_limit(
                f"The account-level service limit '{kind} for training job usage' is {host_type.hosts} Instances, "
                f"with current utilization of {used[pattern] - delta} Instances and a request delta of {delta} "
                "Instances."
            )
