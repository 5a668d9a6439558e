"""Python imports this module at the start of each Python that a rank starts, because its folder is in PYTHONPATH."""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

try:
    from herringbone_entry.ranks import host_names
except ImportError:
    # Another Python, which has no Herringbone.
    pass
else:
    host_names.install(os.environ)
# The module of this name that Python would have imported without ours.
_others = [path for path in sys.path if path != os.path.dirname(__file__)]  # noqa: PTH120 - pathlib costs milliseconds
_spec = PathFinder.find_spec(__name__, _others)
if _spec is not None and _spec.loader is not None:
    sys.modules[__name__] = module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[__name__])
