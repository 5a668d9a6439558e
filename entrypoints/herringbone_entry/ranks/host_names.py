"""Resolve the names in SM_HOSTS where no name server knows them: on one machine, and between machines of `ssh`.

Scripts of SageMaker make MASTER_ADDR, an `init_method` or an address of their own of these names. They resolve in
Python's functions and in torch's store: of a rank, and of the Pythons that it starts, such as torchrun and workers by
spawn (`child_python`). Other programs, such as TensorFlow's servers, need the address in MASTER_ADDR.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import PurePath
from types import ModuleType
from typing import Any

from herringbone_contract.constants import RankVariable
from herringbone_entry.ranks.after_import import AfterImport

# A folder for PYTHONPATH.
CHILD_PYTHON = str(PurePath(__file__).with_name("child_python"))
_BY_NAME = ("getaddrinfo", "gethostbyname", "gethostbyname_ex")
_BY_ADDRESS = ("connect", "connect_ex", "bind")
# Torch names its class by this keyword, or gives the host's name first.
_STORE_ARGUMENT = "host_name"

_Known = Callable[[Any], Any]


def install(environ: Any) -> None:
    """Resolve the names that `os.environ` has, in this process."""
    if RankVariable.HOST_NAMES not in environ:
        return
    import json

    names: Mapping[str, str] = json.loads(environ[RankVariable.HOST_NAMES])

    def known(value: Any) -> Any:
        return names.get(value, value) if isinstance(value, str) else value

    # `os.environ` is the one object of its class. A child that resolves names by itself gets the address.
    kind = type(environ)
    put = kind.__setitem__

    def set_variable(this: Any, name: Any, value: Any) -> None:
        put(this, name, known(value) if name == RankVariable.MASTER_ADDRESS else value)

    kind.__setitem__ = set_variable
    for module, act in (("socket", _serve_sockets), ("torch.distributed.rendezvous", _serve_torch)):
        if module in sys.modules:
            act(known, sys.modules[module])
        else:
            sys.meta_path.insert(0, AfterImport(module, functools.partial(act, known)))


def _serve_sockets(known: _Known, socket: ModuleType) -> None:
    def by_name(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def resolve(host: Any, *rest: Any, **options: Any) -> Any:
            return original(known(host), *rest, **options)

        return resolve

    def by_address(original: Callable[..., Any]) -> Callable[..., Any]:
        def resolve(this: Any, address: Any) -> Any:
            return original(this, (known(address[0]), *address[1:]) if isinstance(address, tuple) else address)

        return resolve

    for name in _BY_NAME:
        setattr(socket, name, by_name(getattr(socket, name)))
    for name in _BY_ADDRESS:
        setattr(socket.socket, name, by_address(getattr(socket.socket, name)))


def _serve_torch(known: _Known, _rendezvous: ModuleType) -> None:
    # The class itself: torch's own rendezvous, which may have a name of its own for it, uses it, too.
    store = sys.modules["torch.distributed"].TCPStore
    construct = store.__init__

    def __init__(this: Any, *arguments: Any, **options: Any) -> None:  # noqa: N807
        if _STORE_ARGUMENT in options:
            options[_STORE_ARGUMENT] = known(options[_STORE_ARGUMENT])
        construct(this, *map(known, arguments[:1]), *arguments[1:], **options)

    store.__init__ = __init__
