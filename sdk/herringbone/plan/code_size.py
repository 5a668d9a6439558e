"""The size of a job's code, and notes about code that is large or left out. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from herringbone.system.sizes import shown_bytes

# Code is copied, and packed for some backends, for every job. Data of this size belongs into a channel.
LARGE_BYTES = 100_000_000
_SHOWN_ENTRIES = 3


class CodeSize(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files of a job's code.

    `largest` are the largest entries of the code's root, each with its bytes; a folder's name ends in a slash.
    `environments` are Python environments inside the code, which do not travel.
    """

    files: int
    bytes: int
    largest: tuple[tuple[str, int], ...] = ()
    environments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.files} file{'s' * (self.files != 1)}, {shown_bytes(self.bytes)}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that the user should read before the job starts."""
        notes = []
        if self.bytes > LARGE_BYTES:
            entries = ", ".join(f"{name} {shown_bytes(size)}" for name, size in self.largest)
            notes.append(
                f"the code has {self}, and is copied for every job; largest: {entries}. Give data by a channel of fit, "
                "or name it in .herringboneignore"
            )
        if self.environments:
            names = ", ".join(f"{name}/" for name in self.environments)
            notes.append(f"left out of the code, as Python environments: {names}; name packages in requirements.txt")
        return tuple(notes)


def code_size(files: Mapping[str, int], environments: Sequence[str] = ()) -> CodeSize:
    """Return the size of files by their names.

    >>> print(code_size({"train.py": 48_000, "data/a.bin": 2_000}))
    2 files, 50.0 KB
    """
    entries: dict[str, int] = {}
    for name, size in files.items():
        top, slash, _ = name.partition("/")
        entries[top + slash] = entries.get(top + slash, 0) + size
    # By size, and by name where sizes are equal, so that equal code gives equal notes.
    largest = sorted(entries.items(), key=lambda entry: (-entry[1], entry[0]))[:_SHOWN_ENTRIES]
    return CodeSize(
        files=len(files), bytes=sum(files.values()), largest=tuple(largest), environments=tuple(environments)
    )
