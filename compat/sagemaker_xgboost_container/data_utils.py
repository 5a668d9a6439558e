"""`sagemaker_xgboost_container.data_utils`: read a channel as XGBoost's matrix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from herringbone import InputError, UnsupportedError

# The words of a content type -> the format of the files.
_FORMATS = {
    "csv": "csv", "text/csv": "csv", "libsvm": "libsvm", "text/libsvm": "libsvm", "text/x-libsvm": "libsvm",
    "parquet": "parquet", "application/x-parquet": "parquet",
}  # fmt: skip


def get_dmatrix(
    data_path: str, content_type: str, csv_weights: int = 0, is_pipe: bool = False, combine_train_val: bool = False
) -> Any:
    """Return the files of a channel as an `xgboost.DMatrix`; None for a channel without files, as in AWS's image.

    >>> get_dmatrix("/opt/ml/input/data/train", "csv").num_row()               # doctest: +SKIP
    100

    The first column of CSV and Parquet is the label, and with `csv_weights=1` the second one is the weight. Raises
    `InputError` for rows that cannot be read, `UnsupportedError` for another content type and for pipes.
    """
    if is_pipe or combine_train_val:
        raise UnsupportedError("get_dmatrix: is_pipe, combine_train_val: files of one channel are read; leave them out")
    kind = _FORMATS.get(content_type.partition(";")[0].strip().lower())
    if kind is None:
        raise UnsupportedError(f"get_dmatrix: {content_type}: files of csv, libsvm and parquet are read")
    found = read_rows(data_path, kind, weighted=bool(csv_weights))
    if found is None:
        return None
    import xgboost

    values, labels, weights = found
    return xgboost.DMatrix(values, label=labels, weight=weights)


def read_rows(data_path: str, kind: str, *, weighted: bool = False) -> tuple[Any, Any, Any] | None:
    """Return values, labels and weights of a file or a folder; None without files."""
    import numpy as np

    top = Path(data_path) if data_path else Path("/none")
    files = [top] if top.is_file() else sorted(path for path in top.rglob("*") if path.is_file())
    files = [file for file in files if not file.name.startswith(".")]
    if not files:
        return None
    try:
        if kind == "libsvm":
            return _sparse(files)
        table = np.concatenate([_table(file, kind) for file in files])
    except ValueError as error:
        raise InputError(f"get_dmatrix: {data_path}: a row that is no {kind}: {error}") from None
    return table[:, 1 + weighted :], table[:, 0], table[:, 1] if weighted else None


def _table(file: Path, kind: str) -> Any:
    import numpy as np

    if kind == "csv":
        return np.loadtxt(file, delimiter=",", ndmin=2)
    from pyarrow import parquet

    return parquet.read_table(file).to_pandas().to_numpy()


def _sparse(files: Sequence[Path]) -> tuple[Any, Any, None]:
    from scipy.sparse import csr_matrix

    labels, values, columns, ends = [], [], [], [0]
    for file in files:
        for line in file.read_text().splitlines():
            if not (words := line.partition("#")[0].split()):
                continue
            labels.append(float(words[0]))
            for word in words[1:]:
                column, _, value = word.partition(":")
                columns.append(int(column))
                values.append(float(value))
            ends.append(len(values))
    return csr_matrix((values, columns, ends), dtype="float32"), labels, None
