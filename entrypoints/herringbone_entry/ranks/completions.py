"""Let a module of Herringbone complete a library once the script has imported it.

    install(os.environ)

A script that does not import the library pays nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from types import ModuleType

from herringbone_entry.ranks.after_import import AfterImport

# Variable that the launcher sets -> module of a library -> module of ours whose `complete()` then runs.
COMPLETIONS = {"HERRINGBONE_ACCELERATE": {"accelerate.accelerator": "herringbone_parallel.torch.sharding.accelerate"}}


def install(environ: Mapping[str, str]) -> None:
    """Call `complete()` of our module after the import of each library's module that this job's variables name."""
    for variable, completions in COMPLETIONS.items():
        if variable in environ:
            for name, ours in completions.items():
                sys.meta_path.insert(0, AfterImport(name, partial(_complete, ours)))


def _complete(ours: str, _: ModuleType) -> None:
    import_module(ours).complete()
