"""Limits of one access key's calls: how often, and each signed call once. Pure: the caller gives the time.

Calls are answered in threads, so both classes may be used by several at once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from herringbone.service.errors import too_often
from herringbone.service.signature import SKEW_SECONDS

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
    """

    started: float = 0.0
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
        with self._lock:
            while self._seen and next(iter(self._seen.values())) < now - 2 * SKEW_SECONDS:
                self._seen.popitem(last=False)
            first = self._seen.get(signature)
            is_replay = first is not None and (changes or now - first > _REPEAT_SECONDS)
            if is_replay or (changes and int(signed_at) < int(self.started)):
                raise too_often("this signed request was received before; sign it again")
            self._seen.setdefault(signature, now)

    def __len__(self) -> int:
        return len(self._seen)
