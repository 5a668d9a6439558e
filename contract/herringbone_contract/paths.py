"""The contract's tree of files below the base folder."""

from __future__ import annotations

from pathlib import PurePath, PurePosixPath
from typing import NamedTuple

from herringbone_contract.constants import DEFAULT_BASE


class Paths(NamedTuple):
    """The contract's tree below one base folder.

    >>> Paths(PurePosixPath("/opt/ml")).failure
    PurePosixPath('/opt/ml/output/failure')
    """

    base: PurePath = PurePosixPath(DEFAULT_BASE)

    @property
    def config(self) -> PurePath:
        return self.base / "input" / "config"

    @property
    def hyperparameters(self) -> PurePath:
        return self.config / "hyperparameters.json"

    @property
    def input_data_config(self) -> PurePath:
        return self.config / "inputdataconfig.json"

    @property
    def resource_config(self) -> PurePath:
        return self.config / "resourceconfig.json"

    @property
    def checkpoint_config(self) -> PurePath:
        return self.config / "checkpointconfig.json"

    @property
    def input(self) -> PurePath:
        return self.base / "input"

    @property
    def data(self) -> PurePath:
        return self.base / "input" / "data"

    def channel(self, name: str) -> PurePath:
        return self.data / name

    @property
    def code(self) -> PurePath:
        return self.base / "code"

    @property
    def model(self) -> PurePath:
        return self.base / "model"

    @property
    def checkpoints(self) -> PurePath:
        return self.base / "checkpoints"

    @property
    def output(self) -> PurePath:
        return self.base / "output"

    @property
    def output_data(self) -> PurePath:
        return self.base / "output" / "data"

    @property
    def tensorboard(self) -> PurePath:
        """The folder of TensorBoard's event files, which SageMaker copies to S3 while the job runs."""
        return self.base / "output" / "tensorboard"

    @property
    def intermediate(self) -> PurePath:
        return self.base / "output" / "intermediate"

    @property
    def failure(self) -> PurePath:
        return self.base / "output" / "failure"

    @property
    def failure_record(self) -> PurePath:
        """The whole `Failure`, as JSON; `failure` holds its first 1,024 characters as text."""
        return self.base / "output" / "failure.json"

    @property
    def versions(self) -> PurePath:
        """The versions of Python, Herringbone and the framework on this host, as JSON, written by its supervisor."""
        return self.base / "output" / "versions.json"

    @property
    def success(self) -> PurePath:
        return self.base / "output" / "success"


# The same paths relative to the base folder, for `safe_tree`.
INSIDE = Paths(PurePosixPath())
