"""Compiling the native core: one shared library of plain C, without Python's headers.

    python -m herringbone_parallel.reduce.build            # where this package lies
    python -m herringbone_parallel.reduce.build FOLDER
    python -m herringbone_parallel.reduce.build FOLDER -g -fsanitize=thread     # with more compiler options

Wheels, editable installs and images call this. Where there is no C compiler, the core in Python does the work. Standard
library alone: this file is also run by itself, before anything is installed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SOURCES = Path(__file__).parent / "native"
LIBRARY = "_native.so"
# No option for this machine's processor: kernels for newer ones are chosen when the library runs.
_OPTIONS = (
    *("-O3", "-std=gnu11", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden"),
    # Sums have the same bits with every compiler: no fused multiply-add; 16 bits are looked at as fp32 and back.
    *("-ffp-contract=off", "-fno-strict-aliasing", "-Wl,--build-id=none"),
)


class CompileError(Exception):
    """There is no compiler, or it failed; the message says which."""


def compile_native(folder: Path, sources: Path = SOURCES, options: Sequence[str] = ()) -> Path:
    """Compile the core into `folder`; return the library's path. Raises `CompileError`.

    The compiler is what CC names, else cc, gcc or clang. `options` come after our own. The same sources, options and
    compiler give the same bytes.
    """
    if not sys.platform.startswith("linux"):
        raise CompileError(f"the native core is for Linux, this is {sys.platform}")
    compiler = shlex.split(os.environ.get("CC", "")) or _found()
    partial = folder / f".{LIBRARY}.{os.getpid()}"
    files = sorted(path.relative_to(sources).as_posix() for path in sources.rglob("*.c"))
    try:
        done = subprocess.run(
            [*compiler, *_OPTIONS, *options, "-o", str(partial.resolve()), *files],
            capture_output=True,
            text=True,
            cwd=sources,
        )
    except OSError as error:
        raise CompileError(f"{compiler[0]} cannot be run: {error}") from None
    if done.returncode:
        partial.unlink(missing_ok=True)
        raise CompileError(f"{compiler[0]} failed: {done.stderr[-2_000:]}")
    return partial.replace(folder / LIBRARY)


def _found() -> list[str]:
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return [path]
    raise CompileError("no C compiler was found (cc, gcc, clang)")


def main(arguments: list[str]) -> int:
    """Compile; without a compiler say so, which is no failure."""
    folder = Path(arguments[0]) if arguments else Path(__file__).parent
    try:
        print(compile_native(folder, options=arguments[1:]))
    except CompileError as error:
        print(f"herringbone: the core in Python will be used: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
