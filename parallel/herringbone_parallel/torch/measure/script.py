"""Run a script as a measurement: as `__main__`, until it has made its steps.

The script stops at the return of an optimizer step, by an exception that no `except Exception` catches.
"""

from __future__ import annotations

import linecache
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType, ModuleType

from torch.optim import Optimizer

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.prediction.measurement import Measurement
from herringbone_parallel.torch.measure.recorder import Recorder
from herringbone_parallel.torch.measure.replacing import replaced
from herringbone_parallel.torch.measure.result import Facts, measurement_of, samples
from herringbone_parallel.torch.measure.stand_ins.cuda import gpus
from herringbone_parallel.torch.measure.stand_ins.files import scratch
from herringbone_parallel.torch.measure.stand_ins.groups import alone
from herringbone_parallel.torch.measure.stand_ins.loaders import Loading, reading
from herringbone_parallel.torch.measure.stand_ins.pipeline import whole_model
from herringbone_parallel.torch.measure.stand_ins.switches import unchecked, uncompiled
from herringbone_parallel.torch.measure.stand_ins.wrappers import unsplit

_REPORT_SECONDS = 2.0


class Measured(BaseException):
    """Ends a script that has made its steps."""


class Session:
    """One measurement: `with session.measuring(): run the script`, then `session.result()`."""

    def __init__(self, *, ranks: int = 1, device: str = "cpu", steps: int = 2, pipelined: bool = False) -> None:
        self.facts = Facts(device=device, ranks=ranks)
        self.loading = Loading()
        self.recorder = Recorder(self._on_step)
        self._steps = steps
        self._pipelined = pipelined

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Measure the `with` block, which ends at the last step."""
        with ExitStack() as stack:
            stack.enter_context(scratch())
            stack.enter_context(self.recorder.watching())
            stack.enter_context(reading(self.recorder, self.loading))
            stack.enter_context(_noting_optimizers(self.recorder))
            stack.enter_context(alone(self.facts.ranks))
            stack.enter_context(unsplit(self.facts))
            stack.enter_context(uncompiled())
            stack.enter_context(unchecked())
            if self._pipelined:
                stack.enter_context(whole_model(self.recorder, self.facts))
            if self.facts.device == "cuda":
                stack.enter_context(gpus(self.recorder, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
            stack.enter_context(suppress(Measured))
            yield

    def result(self) -> Measurement:
        """Return the measurement. Raises `ParallelError` if the script has made no step."""
        if not self.recorder.steps or self.recorder.steps[-1].end < 0:
            raise ParallelError(
                f"the script ended before a step of an optimizer returned: {self.where()}. Measure a training script,"
                " and give it enough data for one step"
            )
        loading, facts = self.loading, self.facts
        facts.data_seconds = loading.batch_seconds()
        facts.data_workers = loading.workers
        accelerate = sys.modules.get("accelerate.state")
        if accelerate is not None and accelerate.AcceleratorState._shared_state:
            # Also under Hugging Face's Trainer.
            facts.wrapper = "accelerate"
        facts.batches = [(moment, size) for moment, size, _ in loading.batches]
        lengths = [length for _, _, length in loading.batches if length is not None]
        facts.epoch_samples = lengths[-1] if lengths else None
        return measurement_of(self.recorder, facts)

    def first_batch(self) -> int | None:
        """Return the samples of the script's first step."""
        end = self.recorder.steps[0].end if self.recorder.steps else len(self.recorder.calls)
        batches = [(moment, size) for moment, size, _ in self.loading.batches]
        return samples(self.recorder, batches, self.recorder.prepared, end)

    def compare(self, batch: int | None) -> None:
        """Compare the first step's samples with those of a run with twice the ranks, None where it had no step."""
        first = self.first_batch()
        if first is None or batch is None:
            self.facts.notes.append("a second run has not shown whether the batch depends on the number of ranks")
        else:
            self.facts.batch_divides = batch < first

    def where(self) -> str:
        """Describe how far the script has come."""
        recorder = self.recorder
        calls = list(recorder.calls[-1:])
        if not calls:
            return "it has run no operation of torch"
        name = recorder.operations[calls[0].operation].name
        steps, forwards = len(recorder.steps), len(recorder.forwards)
        done = f"{len(recorder.calls)} operations, {forwards} forwards, {steps} steps"
        return f"phase {calls[0].phase.name.lower()}, {done}, last operation {name}"

    def _on_step(self, recorder: Recorder) -> None:
        last = recorder.steps[-1].optimizer
        if sum(step.optimizer is last for step in recorder.steps) >= self._steps:
            raise Measured


@contextmanager
def _noting_optimizers(recorder: Recorder) -> Iterator[None]:
    create = Optimizer.__init__

    def created(self: Optimizer, *args: object, **kwargs: object) -> None:
        create(self, *args, **kwargs)  # type: ignore[arg-type]
        recorder.begin_batch(len(recorder.calls))

    with replaced(Optimizer, __init__=created):
        yield


@contextmanager
def reporting(describe: Callable[[], str], folder: Path) -> Iterator[None]:
    """Print on standard error every two seconds how far the script has come in the `with` block, and at which line."""
    over, main = threading.Event(), threading.get_ident()

    def report() -> None:
        while not over.wait(_REPORT_SECONDS):
            line = _line_of(sys._current_frames().get(main), f"{folder}{os.sep}")
            print(f"measure: {describe()}; it stands {line}", file=sys.stderr, flush=True)

    threading.Thread(target=report, name="measure-progress", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _line_of(frame: FrameType | None, folder: str) -> str:
    """Describe the innermost line of a stack that is in the script's folder."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(folder):
            text = linecache.getline(file, frame.f_lineno).strip()
            return f"at line {frame.f_lineno} of {file.removeprefix(folder)}: {text[:120]}"
        frame = frame.f_back
    return "outside of the script's folder"


def run(path: Path, arguments: list[str]) -> None:
    """Run a script in this process as `python script.py` would; its folder is on `sys.path` already."""
    sys.argv = [str(path), *arguments]
    main = ModuleType("__main__")
    main.__file__ = str(path)
    main.__dict__.update(__builtins__=__builtins__, __cached__=None, __spec__=None)
    sys.modules["__main__"] = main
    code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    exec(code, main.__dict__)  # noqa: S102  running the user's script is the purpose
