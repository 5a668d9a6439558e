"""Checkpoints of whole arrays, in the form that torch's library reads, too."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from herringbone_contract.checkpoint.verification import hidden, listing, newest_complete, read_manifest, verify
from herringbone_contract.errors import ParallelError
from herringbone_parallel.position.checkpoint import read, write
from herringbone_parallel.position.parts import Kept, Part
from herringbone_parallel.position.training import Peers, Saver
from herringbone_parallel.torch.checkpoint.api import read_plain

ARRAYS: dict[str, Any] = {
    "model/0:dense/kernel": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "model/1:step": np.array(7, np.int64),
    "model/2:empty": np.zeros((0, 3), np.float16),
    ".own/0/.numbers": np.frombuffer(b"abc", np.uint8),
}


def _write(folder: Path, tag: str = "step-1", arrays: Any = None) -> Path:
    write(folder, tag, ARRAYS if arrays is None else arrays, {"step": 1}, ranks=2, library="numpy")
    return folder / tag


def test_arrays_come_back_and_torch_reads_them(tmp_path: Path) -> None:
    path = _write(tmp_path)
    back = read(path, read_manifest(path))
    assert back.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(back[name], array, strict=True)
    assert not verify(path)
    assert read_plain(path)["model"]["0:dense/kernel"].tolist() == ARRAYS["model/0:dense/kernel"].tolist()


def test_damage_is_found_and_nothing_is_left_of_a_failed_save(tmp_path: Path) -> None:
    path = _write(tmp_path)
    [file] = path.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(ParallelError, match="is damaged"):
        read(path, read_manifest(path))
    with pytest.raises(ParallelError, match="'text' is of"):
        _write(tmp_path, "step-2", {"text": np.array(["a"])})
    assert [entry.tag for entry in listing(tmp_path)] == ["step-1"]


# Each write, flush and rename of a save: whatever comes after it does not happen.
@pytest.mark.parametrize("cut", range(12))
def test_a_save_that_is_cut_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    _write(tmp_path)
    calls = 0

    def counted(call: Any) -> Any:
        def called(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > cut:
                # As SIGKILL, which no handler sees.
                raise KeyboardInterrupt
            return call(*arguments, **options)

        return called

    with monkeypatch.context() as patched:
        for name in ("fsync", "rename", "replace", "write"):
            patched.setattr(os, name, counted(getattr(os, name)))
        patched.setattr("shutil.rmtree", lambda *_, **__: None)
        with contextlib.suppress(KeyboardInterrupt):
            _write(tmp_path, "step-2")
    complete = [entry.tag for entry in listing(tmp_path) if entry.manifest is not None]
    assert "step-1" in complete
    for tag in complete:
        assert not verify(tmp_path / tag)
    assert newest_complete(tmp_path)[1] is None
    # The next save removes what was left.
    _write(tmp_path, "step-3")
    assert not hidden(tmp_path)


class _Values(Part):
    def __init__(self, own: float) -> None:
        self.array = np.array([own])

    def arrays(self) -> Any:
        return {"same": np.ones(2)}

    def own(self) -> Any:
        return {"mean": self.array, "equal": np.zeros(1)}

    def values(self) -> Any:
        return {"own": float(self.array[0])}

    def put(self, kept: Kept) -> None:
        self.array, self.kept = kept.arrays["mean"], kept


def _together(savers: list[Saver], call: Any) -> list[Any]:
    """Run a call of some ranks in threads, whose gathers meet."""
    from concurrent.futures import ThreadPoolExecutor
    from threading import Barrier

    barrier, parts = Barrier(len(savers)), [b""] * len(savers)

    def peers(rank: int) -> Peers:
        def gather(data: bytes) -> list[bytes]:
            parts[rank] = data
            barrier.wait(10)
            result = list(parts)
            barrier.wait(10)
            return result

        return Peers(rank, len(savers), gather)

    with ThreadPoolExecutor(len(savers)) as pool:
        return [one.result() for one in [pool.submit(call, saver, peers(n)) for n, saver in enumerate(savers)]]


def test_ranks_keep_what_differs_and_others_take_that_of_the_first(tmp_path: Path) -> None:
    parts = [_Values(1.0), _Values(2.0)]
    savers = [Saver(tmp_path, {"part": part}, "numpy") for part in parts]
    _together(savers, lambda saver, peers: saver.save("step-3", {"step": 3}, peers))
    names = set(read_manifest(tmp_path / "step-3").tensors)
    assert names == {"part/same", "part/mean", "part/equal", ".own/1/part/mean", ".own/0/.numbers", ".own/1/.numbers"}

    def back(saver: Saver, peers: Peers) -> Any:
        found = saver.find(None, peers)
        assert found is not None
        saver.put(found, ["part"], peers)
        kept = saver.parts["part"].kept  # type: ignore[attr-defined]
        return kept.arrays["mean"].tolist(), kept.values, found.is_same

    assert _together(savers, back) == [([1.0], {"own": 1.0}, True), ([2.0], {"own": 2.0}, True)]
    three = [Saver(tmp_path, {"part": _Values(0.0)}, "numpy") for _ in range(3)]
    assert _together(three, back) == [([1.0], {"own": 1.0}, False)] * 3


def test_ranks_that_fail_or_find_different_checkpoints_raise_on_all(tmp_path: Path) -> None:
    class Failing(_Values):
        def values(self) -> Any:
            raise ParallelError("the sampler draws")

    def error(call: Any) -> Any:
        def called(saver: Saver, peers: Peers) -> str:
            with pytest.raises(ParallelError) as raised:
                call(saver, peers)
            return str(raised.value)

        return called

    savers = [Saver(tmp_path / "a", {"part": one}, "numpy") for one in (_Values(1.0), Failing(2.0))]
    texts = _together(savers, error(lambda saver, peers: saver.save("step-1", {"step": 1}, peers)))
    assert texts == ["rank 1 cannot save: the sampler draws", "the sampler draws"]
    assert not (tmp_path / "a").exists()
    Saver(tmp_path / "a", {"part": _Values(1.0)}, "numpy").save("step-1", {"step": 1}, Peers())
    savers = [Saver(tmp_path / name, {"part": _Values(1.0)}, "numpy") for name in "ab"]
    assert all("find different checkpoints" in text for text in _together(savers, error(lambda s, p: s.find(None, p))))
    assert Saver(tmp_path / "b", {}, "numpy").find(None, Peers()) is None
