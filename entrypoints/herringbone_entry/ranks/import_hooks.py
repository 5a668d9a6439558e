"""Act when the script imports certain modules: limit torch's rendezvous store, listen for orders, serve the Trainer."""

from __future__ import annotations

import os
import sys
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from herringbone_entry.channel import attach
from herringbone_entry.ranks.after_import import AfterImport

# Modules of Hugging Face's transformers that have branches for AWS's two libraries.
_TRAINER_MODULES = ("transformers.training_args", "transformers.trainer")

# What every rank changes in transformers, by the module of theirs that the script has imported.
_HUGGING_FACE = "herringbone_contract.events.hugging_face"
_FOR_ALL = {"transformers.hf_argparser": "accept_added_arguments", "transformers.trainer": "send_logs"}

# Libraries that leave a rank waiting, alone, or with an unclear error; by the module of theirs that the script has
# imported.
_WATCHED = {
    "keras.src.backend.tensorflow.trainer": "herringbone_entry.ranks.keras_strategies",
    "torch.utils.file_baton": "herringbone_entry.ranks.build_lock",
    "lightning.pytorch.trainer.trainer": "herringbone_entry.ranks.lightning",
    "pytorch_lightning.trainer.trainer": "herringbone_entry.ranks.lightning",
}

# Adds the calls that Keras 3 removed and TensorFlow's own tutorials still make.
_KERAS = "herringbone_parallel.tensorflow.keras_compat.resets"
# Modules that ours complete, where the launcher has set accelerate's variables.
_COMPLETIONS = {
    "accelerate.accelerator": "herringbone_parallel.torch.sharding.accelerate",
    "transformers.trainer": "herringbone_parallel.torch.sharding.trainer",
}
# What lets loops of others go on in the middle of an epoch, by the module of theirs that the script has imported.
_POSITION = {
    "accelerate.data_loader": ("accelerate", "loaders"),
    "accelerate.optimizer": ("accelerate", "optimizers"),
    "accelerate.checkpointing": ("accelerate", "checkpoints"),
    "transformers.trainer_utils": ("hugging_face_saves", "lookups"),
    "transformers.trainer": ("hugging_face", "complete"),
}
_POSITION_OF_LIGHTNING = "herringbone_parallel.torch.position.lightning"
# Version 1 of the model-parallel library for torch; one module of it watches custom autograd functions.
_MODEL_PARALLEL = "herringbone_parallel.torch.model_parallel."
_FUNCTIONS = "herringbone_parallel.torch.function_apply"
# Reports what a prediction is compared with.
_COMPARED = "herringbone_parallel.torch.compared"
# Sends checksums of parameters.
_REPLICAS = "herringbone_parallel.torch.replicas"
# Record every optimizer step, in rehearsals; by the framework.
_RECORDERS = {
    "torch": "herringbone_parallel.torch.fingerprints.recorder",
    "keras": "herringbone_parallel.tensorflow.fingerprints",
    "mxnet": "herringbone_parallel.mxnet.fingerprints",
}
# Notes the ends of steps where torch records the collective operations in between.
_STEP_TIMES = "herringbone_entry.ranks.recorder.step_times"


def install(listen: str, orders: str, trainer_hooks: str) -> None:
    """Have the store listen at the address `listen`, and orders come through the folder `orders`; "" for neither.

    `trainer_hooks` is the module whose `serve(module)` gets the modules of Hugging Face's Trainer; "" for none.
    """
    for name, function in _FOR_ALL.items():
        sys.meta_path.insert(0, AfterImport(name, partial(_complete, _HUGGING_FACE, function)))
    if find_spec("herringbone_parallel") and find_spec("herringbone_parallel.torch"):
        for name, (ours, function) in _POSITION.items():
            completion = f"herringbone_parallel.torch.position.{ours}"
            sys.meta_path.insert(0, AfterImport(name, partial(_complete, completion, function)))
        for name in ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"):
            sys.meta_path.insert(0, AfterImport(name, partial(_watch, _POSITION_OF_LIGHTNING)))
    for name, ours in _WATCHED.items() if sys.platform == "linux" else ():
        sys.meta_path.insert(0, AfterImport(name, partial(_watch, ours)))
    sys.meta_path.insert(0, AfterImport("keras", partial(_watch, _KERAS)))
    if orders and sys.platform == "linux":
        sys.meta_path.insert(0, ListenerStart(orders))
        if os.environ.get(next(iter(attach.RECORDER)), "0") != "0":
            sys.meta_path.insert(0, AfterImport("torch.optim.optimizer", partial(_watch, _STEP_TIMES)))
    if listen:
        sys.meta_path.insert(0, store_finder(listen))
    if trainer_hooks:
        for name in _TRAINER_MODULES:
            sys.meta_path.insert(0, AfterImport(name, lambda module: import_module(trainer_hooks).serve(module)))
    if trainer_hooks.startswith(_MODEL_PARALLEL):
        # Before a script can bind the method `apply` of a function: since torch 2.14 a bound one cannot be replaced.
        watch = AfterImport("torch.autograd.function", lambda module: import_module(_FUNCTIONS).watch(module))
        sys.meta_path.insert(0, watch)
    if os.environ.get("HERRINGBONE_COMPARE") == "on":
        sys.meta_path.insert(0, AfterImport("torch", partial(_complete, _COMPARED, "report")))
    if "HERRINGBONE_CHECK_REPLICAS" in os.environ:
        sys.meta_path.insert(0, AfterImport("torch", partial(_complete, _REPLICAS, "watch")))
    if os.environ.get("HERRINGBONE_FINGERPRINTS") == "on":
        for name, recorder in _RECORDERS.items():
            sys.meta_path.insert(0, AfterImport(name, partial(_complete, recorder, "record")))
    if "HERRINGBONE_ACCELERATE" in os.environ:
        for name, completion in _COMPLETIONS.items():
            sys.meta_path.insert(0, AfterImport(name, partial(_complete, completion, "complete")))


def names() -> set[str]:
    """Return the modules that any rank may have completed at their import."""
    lightning = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")
    return {*_FOR_ALL, *_POSITION, *_WATCHED, *_COMPLETIONS, *_TRAINER_MODULES, *_RECORDERS, *lightning} - {"torch"}


def _watch(ours: str, module: ModuleType) -> None:
    import_module(ours).watch(module)


def _complete(completion: str, function: str, _module: ModuleType) -> None:
    getattr(import_module(completion), function)()


class ListenerStart:
    """Starts the thread that listens for orders when the script imports torch.distributed.

    A rank that waits in a collective runs no signal handler of Python's, so an order needs a thread there. Other
    scripts get none: Python warns of a fork in a process with threads. Torch itself starts threads in any case.
    """

    def __init__(self, orders: str) -> None:
        self._orders = orders

    def find_spec(self, name: str, *_: object) -> Any:
        """Return None, so that Python asks the next finder."""
        if name == "torch.distributed":
            # Once is enough.
            sys.meta_path.remove(self)
            from herringbone_entry.ranks import orders

            orders.listen(self._orders)
            _rename_recorder()


def store_finder(listen: str) -> AfterImport:
    """Return the finder that has torch's rendezvous store listen at one address."""
    # The script may change these variables later, for a store of its own.
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])

    def act(module: ModuleType) -> None:
        from herringbone_contract.library_hooks import require
        from herringbone_entry.ranks.library_hooks import STORE
        from herringbone_entry.ranks.torch_store import limit

        require(STORE)
        limit(module, listen, host, port)

    return AfterImport("torch.distributed.rendezvous", act)


def _rename_recorder() -> None:
    """Give the flight recorder of an older torch its variable under the name that it reads."""
    [name] = attach.RECORDER
    version = str(getattr(sys.modules.get("torch.version"), "__version__", "")).split(".")
    numbers = tuple(int(part) for part in version[:2] if part.isdigit())
    if name in os.environ and numbers < (2, 8):
        os.environ.setdefault(attach.OLD_RECORDER, os.environ[name])
