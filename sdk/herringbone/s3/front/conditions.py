"""The conditions of a request about an object: what must hold before it is read, copied, replaced or removed. Pure."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, NamedTuple

from herringbone.s3.front.refusals import S3Error

if TYPE_CHECKING:
    from starlette.datastructures import Headers


class Facts(NamedTuple):
    """An object without its content. `modified` is in seconds since 1970; `meta` are headers to send with it."""

    key: str
    size: int
    etag: str
    modified: float
    meta: dict[str, str]


class Conditions(NamedTuple):
    """The values of If-Match and its kin; "" for those that a request does not have.

    >>> Conditions(match='"0a", "1b"').check_write(None)                         # doctest: +SKIP
    """

    match: str = ""
    none_match: str = ""
    modified_since: str = ""
    unmodified_since: str = ""

    @classmethod
    def of(cls, headers: Headers, prefix: str = "if-") -> Conditions:
        names = ("match", "none-match", "modified-since", "unmodified-since")
        return cls(*(", ".join(headers.getlist(prefix + name)) for name in names))

    def check_read(self, facts: Facts, *, copies: bool = False) -> None:
        """Raise `S3Error` where an object is not to be read: 304 for one that the client knows, 412 otherwise.

        As in RFC 9110, an ETag counts before a time. A copy has no 304.
        """
        holds = _names(self.match, facts.etag) if self.match else not self._is_later(facts, self.unmodified_since)
        if self.none_match:
            is_known = _names(self.none_match, facts.etag, weak=True)
        else:
            is_known = bool(self.modified_since) and not self._is_later(facts, self.modified_since)
        if is_known and holds and not copies:
            raise S3Error("NotModified", "Not Modified", 304)
        if is_known or not holds:
            raise _failed()

    @staticmethod
    def _is_later(facts: Facts, text: str) -> bool:
        """Report whether an object is newer than a time, in whole seconds; False for no time."""
        try:
            return bool(text) and int(facts.modified) > parsedate_to_datetime(text).timestamp()
        except (ValueError, TypeError, OverflowError):
            raise S3Error("InvalidArgument", f"{text!r} is no date of HTTP.") from None

    def check_write(self, facts: Facts | None) -> None:
        """Raise `S3Error` where an object, None for none, is not to be replaced or removed."""
        if self.none_match not in ("", "*"):
            raise S3Error("NotImplemented", "If-None-Match of a write is * alone.", 501)
        if self.match and facts is None:
            raise S3Error("NoSuchKey", "The specified key does not exist.", 404)
        if (self.none_match and facts is not None) or (self.match and facts and not _names(self.match, facts.etag)):
            raise _failed()


ALWAYS = Conditions()


def _names(text: str, etag: str, *, weak: bool = False) -> bool:
    parts = [part.strip() for part in text.split(",")]
    return text.strip() == "*" or etag in [(part.removeprefix("W/") if weak else part).strip('"') for part in parts]


def _failed() -> S3Error:
    return S3Error("PreconditionFailed", "At least one of the preconditions you specified did not hold.", 412)
