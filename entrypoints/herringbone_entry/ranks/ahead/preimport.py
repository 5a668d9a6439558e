"""Import, in a prewarmed rank, what its script imports first, and wait for the start message.

    preimport order ----> imports ----> start message ----> the same state as in a fresh rank: go on
                             |                |
                             | a module that may not be imported early, or a variable that is another one now
                             +----------------+----> this process executes a new Python in its place

The order is the start message of the earlier attempt's rank, with `imports`, the statements to run. A rank must not
differ for having been prewarmed. The imports are those that the script runs before any other statement of its own
(`leading_imports`), under the same variables, arguments and folders; what they read of the variables is recorded. The
new Python has the same process id, link and output: the supervisor sees one rank.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import weakref
from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Any, NoReturn

from herringbone_entry.channel import attach
from herringbone_entry.channel.frames import Message, Wire
from herringbone_entry.ranks import import_hooks
from herringbone_entry.ranks.after_import import AfterImport
from herringbone_entry.ranks.ahead.own_modules import has_module

# Variables that only Python code reads. Libraries in C read others when they load, which nothing records.
_OWN = ("SM_", "HERRINGBONE_", "MASTER_", "KUBEFLOW_TRAINER_", "TORCHELASTIC_", "SMDATAPARALLEL_")
_OWN_NAMES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"),
    *("ROLE_WORLD_SIZE", "TF_CONFIG", "no_proxy"),
)
# Functions that a rank replaces where names of hosts have to be resolved (`host_names`).
_RESOLVERS = ("getaddrinfo", "gethostbyname", "gethostbyname_ex")
# The rank's own program, which keeps the original.
_RANK = "herringbone_entry.ranks.rank"
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/neuron", "/dev/accel")


class Unfit(BaseException):
    """A module that may not be imported early. No library's `except Exception` catches this."""


def until_start(wire: Wire, order: Message) -> Message:
    """Run the imports of the order, and return the start message; or start this process anew."""
    first = dict(os.environ)
    try:
        imported = _Imports(order, first)
    except Unfit as unfit:
        text, number = unfit.args
        if number:
            # The imports before it have served well.
            _execute_anew(wire, [{**order, "imports": order["imports"][:number], "why": text}], first)
        wire.send({"kind": "preimported", "count": 0, "why": text})
        _execute_anew(wire, [], first)
    wire.send({"kind": "preimported", "count": len(order["imports"]), "why": order.get("why", "")})
    try:
        message = wire.wait()
    except EOFError:
        os._exit(0)
    if why := imported.differs(message["environment"], message["secrets"]):
        wire.send({"kind": "preimported", "count": 0, "why": why})
        _execute_anew(wire, [message], first)
    return {**message, "environment": imported.settle(message["environment"])}


def act_on_imported() -> None:
    """Have each hook act whose module is imported already; in the order of the imports."""
    hooks = [hook for hook in sys.meta_path[::-1] if isinstance(hook, AfterImport)]
    for name in list(sys.modules):
        # Several hooks may wait for one module; the last one installed acts last, as in a nest of loaders.
        for hook in [hook for hook in hooks if hook.name == name]:
            sys.meta_path.remove(hook)
            hook.act(sys.modules[name])
    if "torch.distributed" in sys.modules:
        for start in [hook for hook in sys.meta_path if isinstance(hook, import_hooks.ListenerStart)]:
            start.find_spec("torch.distributed")


class _Imports:
    """The imports of one order, done in the constructor. Raises `Unfit` with a reason and the number of fit ones."""

    def __init__(self, order: Message, first: Mapping[str, str]) -> None:
        self._expected: dict[str, str] = {**first, **order["environment"]}
        for name in (attach.REPORT, attach.LAYOUT, attach.RUN_FOLDER, *attach.SESSION_FOLDERS):
            self._expected.pop(name, None)
        _set_environment(self._expected)
        baseline = dict(os.environ)
        os.chdir(order["code"])
        path, argv, main = list(sys.path), sys.argv, sys.modules["__main__"]
        sys.path.extend(folder for folder in order["last_paths"] if folder not in sys.path)
        sys.argv = [order["program"], *order["arguments"]]
        sys.modules["__main__"] = script = ModuleType("__main__")
        script.__dict__.update(__file__=order["program"], __spec__=None, __cached__=None)
        guard = _Guard(order["first_paths"])
        sys.meta_path.insert(0, guard)
        self._reads = _Reads()
        state, before = _state(), list(sys.path)
        number = 0
        try:
            for statement in order["imports"]:
                _run(statement)
                if guard.hit or _state() != state or sys.path != before:
                    raise Unfit(guard.hit or f"`{statement}` changes more of this process than its modules")
                if late := _hooked_elsewhere():
                    raise Unfit(f"`{statement}` imports {late}, which Herringbone completes when a script imports it")
                if bound := _binds_replaced(with_resolvers="HERRINGBONE_HOST_NAMES" in baseline):
                    raise Unfit(f"`{statement}` imports {bound}, which a rank replaces when its script starts")
                number += 1
        except Unfit as unfit:
            raise Unfit(unfit.args[0], number) from None
        finally:
            self._reads.stop()
            sys.meta_path.remove(guard)
        sys.path[:], sys.argv, sys.modules["__main__"] = path, argv, main
        # What the modules themselves have set.
        now = dict(os.environ)
        self._set = {name: value for name, value in now.items() if baseline.get(name) != value}
        self._removed = [name for name in baseline if name not in now]
        self._first = first
        gc.collect()

    def differs(self, environment: Mapping[str, str], secrets: Mapping[str, str] = MappingProxyType({})) -> str:
        """Say which variable makes a fresh rank's imports other ones; "" for none."""
        new = self._new(environment)
        changed = [name for name in {**self._expected, **new} if self._expected.get(name) != new.get(name)]
        # Each is set to another descriptor, behind the imports.
        changed += secrets
        for name in sorted(changed):
            if name in self._reads.names or name in self._reads.kept():
                return f"an imported module has read {name}, which is another one now"
            if not (name.startswith(_OWN) or name in _OWN_NAMES):
                return f"{name} is another one now"
        return ""

    def settle(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Set the variables of the start, and what the modules made of them at their import; return the former."""
        _set_environment({**self._new(environment), **self._set})
        for name in self._removed:
            os.environ.pop(name, None)
        return {name: self._set.get(name, value) for name, value in environment.items()}

    def _new(self, environment: Mapping[str, str]) -> dict[str, str]:
        new = {**self._first, **environment}
        for name in (attach.REPORT, attach.LAYOUT, attach.RUN_FOLDER, *attach.SESSION_FOLDERS):
            new.pop(name, None)
        return new


def _run(statement: str) -> None:
    try:
        exec(statement, {"__name__": "__main__"})  # noqa: S102 - an import of the user's own script
    except Unfit:
        raise
    except BaseException as error:  # noqa: BLE001 - the rank that runs the script will say it
        raise Unfit(f"`{statement}` fails: {type(error).__name__}: {error}") from None


class _Guard:
    """A finder that ends the imports where a library would import a module of the job's code."""

    def __init__(self, folders: list[str]) -> None:
        self._folders = folders
        self.hit = ""

    def find_spec(self, name: str, path: Any = None, _target: object = None) -> None:
        """Raise `Unfit` for a module of the job's code."""
        if path is None and has_module(self._folders, name):
            self.hit = f"a library imports {name}, which is a module of the job's code"
            raise Unfit(self.hit)


def _hooked_elsewhere() -> str:
    """Return an imported module that ours complete, and that others have bound names of by now; "" for none.

    Those of torch may be completed later: ours replace what torch looks up at each call.
    """
    return next((name for name in import_hooks.names() if name in sys.modules and not name.startswith("torch.")), "")


def _binds_replaced(*, with_resolvers: bool) -> str:
    """Return a name by which an imported module has a function that a rank replaces at its start; "" for none."""
    import socket

    replaced = [os._exit, *(getattr(socket, name) for name in _RESOLVERS if with_resolvers)]
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and name not in ("os", "posix", "socket", "_socket", __name__, _RANK):
            for member, value in list(vars(module).items()):
                if any(value is each for each in replaced):
                    return f"{name}.{member}"
    return ""


def _state() -> tuple[object, ...]:
    """Return what imports leave alone in a rank that may go on."""
    import threading

    opened = []
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
            with contextlib.suppress(OSError):
                opened.append(os.readlink(f"/proc/self/fd/{name}"))  # noqa: PTH115
    handlers = [signal.getsignal(number) for number in sorted(signal.valid_signals())]
    devices = [path for path in opened if path.startswith(_DEVICES)]
    return (threading.active_count(), handlers, sys.excepthook, os._exit, os.getcwd(), devices)  # noqa: PTH109


class _Text(str):
    """A value that was read along with all others, which a weak reference can follow."""

    __slots__ = ("__weakref__",)


class _Reads:
    """Records which variables Python code reads, until `stop`.

    Code that goes through all variables reads them all; then only those values count that it has kept.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._passed: list[tuple[str, weakref.ref[_Text]]] = []
        reads, kind = self, type(os.environ)

        class Recorded(kind):  # type: ignore[misc, valid-type]
            def __getitem__(self, name: str) -> str:
                caller = sys._getframe(1)
                in_passing = caller.f_code.co_name == "__iter__" and caller.f_globals["__name__"] == "collections.abc"
                if not in_passing:
                    reads.names.add(name)
                value: str = super().__getitem__(name)
                if not in_passing:
                    return value
                text = _Text(value)
                reads._passed.append((name, weakref.ref(text)))
                return text

        self._kind = kind
        os.environ.__class__ = Recorded

    def kept(self) -> set[str]:
        """Return the variables whose values were read along with all others and are still somewhere."""
        return {name for name, value in self._passed if value() is not None}

    def stop(self) -> None:
        """Record no more."""
        os.environ.__class__ = self._kind


def _set_environment(environment: Mapping[str, str]) -> None:
    for name in [name for name in os.environ if name not in environment]:
        del os.environ[name]
    os.environ.update(environment)


def _execute_anew(wire: Wire, messages: list[Message], environment: Mapping[str, str]) -> NoReturn:
    """Execute a new Python in this process, which reads these messages before those that the link still has."""
    memory = os.memfd_create("rank")
    # Not `files.write_all`: a fresh rank has not loaded that module.
    data = wire.unread(messages)
    while data:
        data = data[os.write(memory, data) :]
    inherited = [memory, wire.fileno(), *wire.descriptors]
    for descriptor in inherited:
        os.set_inheritable(descriptor, True)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    resumed = ":".join(map(str, [memory, *wire.descriptors]))
    os.execve(sys.executable, sys.orig_argv, {**environment, attach.RESUMED: resumed})  # noqa: S606 - as it began
