"""TensorBoard: one file of events a job, written with TensorBoard's own classes and without TensorFlow.

The state has the size of the file up to the last batch that was sent. A later process cuts off what stands behind, so
no value is in the file twice.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.record_writer import RecordWriter

from herringbone.trackers.tracker import calls_of

if TYPE_CHECKING:
    from herringbone.plan.destinations import Destination
    from herringbone.trackers.facts import JobFacts
    from herringbone_contract.events.format import Point

_VERSION = "brain.Event:2"
# The largest number of 32 bits, in which TensorBoard stores scalars.
_MAX_VALUE = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]


class TensorBoardTracker:
    """See `Tracker`. The run's folder is FOLDER/JOB."""

    def __init__(self, destination: Destination, folder: Path) -> None:  # noqa: ARG002 - its files are the user's
        self._folder = Path(destination.place)
        self._file: BinaryIO | None = None
        self.state: dict[str, Any] = {}

    def begin(self, facts: JobFacts, state: Mapping[str, Any]) -> None:
        path = self._folder / facts.name / f"events.out.tfevents.{int(facts.created)}.herringbone"
        size = state.get("size", 0)
        with _calls():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("r+b" if path.exists() else "w+b")
            # A file that somebody has shortened or removed begins again, and gets what is new.
            size = min(size, os.fstat(self._file.fileno()).st_size)
            self._file.truncate(size)
            self._file.seek(size)
        self.state = {"address": str(path.parent), "size": size}
        if size == 0:
            first = Event(wall_time=facts.created, file_version=_VERSION)
            settings = _text("hyperparameters", _table(facts.hyperparameters), facts.created)
            self._write([first, settings])

    def log(self, points: Sequence[Point]) -> None:
        self._write(
            Event(
                wall_time=point.time,
                step=point.step or 0,
                summary=Summary(value=[Summary.Value(tag=point.name, simple_value=_fitting(point.value))]),
            )
            for point in points
        )

    def end(self, facts: JobFacts) -> None:
        self._write([_text("job", _table(facts.tags), facts.created if facts.ended is None else facts.ended)])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, events: Iterable[Event]) -> None:
        assert self._file is not None
        with _calls():
            # What a failed write has left, such as on a full disk.
            self._file.seek(self.state["size"])
            self._file.truncate()
            writer = RecordWriter(self._file)
            for event in events:
                writer.write(event.SerializeToString())
            self._file.flush()
            self.state = {**self.state, "size": self._file.tell()}


def _fitting(value: float) -> float:
    # A larger one would be shown as infinite.
    return max(-_MAX_VALUE, min(_MAX_VALUE, value)) if abs(value) != float("inf") else value


def _text(name: str, text: str, time: float) -> Event:
    """Return an event of TensorBoard's text plug-in."""
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    tensor = TensorProto(
        dtype=DT_STRING,
        string_val=[text.encode()],
        tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
    )
    value = Summary.Value(tag=name, metadata=metadata, tensor=tensor)
    return Event(wall_time=time, step=0, summary=Summary(value=[value]))


def _table(values: Mapping[str, str]) -> str:
    """Return a table in Markdown, which TensorBoard renders without HTML of the texts."""
    rows = [f"| {_cell(name)} | {_cell(value)} |" for name, value in values.items()]
    return "\n".join(["| name | value |", "|---|---|", *rows])


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("\r", " ")


def _calls() -> AbstractContextManager[None]:
    # A full disk may have room again; a missing permission stays.
    lasting = (PermissionError, NotADirectoryError, IsADirectoryError)
    return calls_of("TensorBoard", lambda error: isinstance(error, OSError) and not isinstance(error, lasting))
