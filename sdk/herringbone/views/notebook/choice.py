"""Choose how `fit` shows a job: all lines of its log, or in a notebook one line that moves."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from herringbone.show.console import Console

if TYPE_CHECKING:
    from herringbone.protocols.backend import Backend
    from herringbone.views.notebook.progress import Display


def console_of(name: str, backend: Backend, logs: bool | str) -> Console:
    """Return the console for a job; `logs` is that of `fit`, where a word asks for every line in a notebook, too.

    >>> type(console_of("digits-1", backend, True)).__name__     # doctest: +SKIP
    'NotebookConsole'
    """
    display = None if isinstance(logs, str) else kernel_display()
    if display is None:
        return Console()
    # Imported here: only notebooks need it.
    from herringbone.views.notebook.progress import NotebookConsole

    return NotebookConsole(name, backend, display)


def kernel_display() -> Display | None:
    """Return how to show something below the running cell, and to replace it; None outside a notebook's kernel.

    IPython is not imported: in a notebook it is there already.
    """
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is None:
        return None
    import uuid

    from IPython.display import display, update_display

    number = uuid.uuid4().hex

    def show(data: dict[str, Any], is_first: bool) -> None:
        if is_first:
            display(data, raw=True, display_id=number)  # type: ignore[no-untyped-call]
        else:
            update_display(data, raw=True, display_id=number)  # type: ignore[no-untyped-call]

    return show
