"""Check the layers of the native core: a file includes and uses only what lower layers define.

Usage: `python scripts/native_layers.py`. Prints each breach and exits 1 when there is one. A lower layer calls a higher
one through pointers only (`struct link_callbacks`).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

NATIVE = Path(__file__).resolve().parent.parent / "parallel/herringbone_parallel/reduce/native"
# Lowest first. A name stands for its .c and its .h file; `reduce.h`, which every layer may include, has no .c file.
LAYERS = (
    *(
        "reduce",
        "clock",
        "ring",
        "kernels",
        "sums",
        "state",
        "buffers",
        "slots",
        "links",
        "arrivals",
        "flow",
        "core",
        "abi",
    ),
    *("libfabric", "provider", "relay", "fabric"),
)

_INCLUDE = re.compile(r'^#include "(?:.*/)?(\w+)\.h"', re.MULTILINE)
_COMMENT_OR_STRING = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"', re.DOTALL)
# Definitions begin in the first column; `static` ones are known in their own file alone.
_DEFINITION = re.compile(
    r"^(?!static|extern|typedef|#|union|enum)\w[\w \*]*?\b(\w+)(?: = \{|\([^;{]*\) \{)", re.MULTILINE
)


def breaches(sources: dict[str, str]) -> list[str]:
    """Return what is wrong with files, given as name and text, in the order of the files."""
    code = {name: _COMMENT_OR_STRING.sub(" ", text) for name, text in sources.items()}
    layer = {name: Path(name).stem for name in sources}
    if unknown := sorted(name for name in sources if layer[name] not in LAYERS):
        return [f"{name}: it has no layer in scripts/native_layers.py" for name in unknown]
    order = {stem: number for number, stem in enumerate(LAYERS)}
    definer = {symbol: layer[name] for name in code for symbol in _DEFINITION.findall(code[name])}
    result = []
    for name, text in sources.items():
        for included in _INCLUDE.findall(text):
            if order[included] > order[layer[name]]:
                result.append(f"{name}: it includes {included}.h of a higher layer")
        for symbol in sorted(set(re.findall(r"\b[a-z]\w+", code[name])) & definer.keys()):
            # Headers declare what their .c file defines, and reduce.h what abi.c does.
            if name.endswith(".c") and order[definer[symbol]] > order[layer[name]]:
                result.append(f"{name}: it uses {symbol} of {definer[symbol]}.c, a higher layer")
    return result


def main() -> int:
    sources = {
        path.relative_to(NATIVE).as_posix(): path.read_text(encoding="utf-8") for path in sorted(NATIVE.rglob("*.[ch]"))
    }
    bad = breaches(sources)
    print("\n".join(bad) if bad else "native layers: kept")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
