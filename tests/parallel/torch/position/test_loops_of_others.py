"""Unchanged loops of Hugging Face's Trainer, PEFT, accelerate and Lightning go on in the middle of an epoch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.huggingface.resumed_loops import EPOCHS, SAMPLES
from tests.parallel.torch.ranks import free_port

ROOT = Path(__file__).parents[4]
# scripts/nightly names Pythons with other releases.
PYTHON = Path(os.environ.get("TEST_HUGGINGFACE_PYTHON", ROOT / ".venv-huggingface" / "bin" / "python"))
pytestmark = pytest.mark.huggingface


class Ranks:
    """Processes that run loops together, as the ranks of a job do."""

    def __init__(self, number: int) -> None:
        shared = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in (".", "contract", "parallel", "entrypoints")),
            "WORLD_SIZE": str(number),
            "LOCAL_WORLD_SIZE": str(number),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCHELASTIC_RUN_ID": "test",
            "GROUP_RANK": "0",
        }
        if number == 1:
            # Without a process group.
            shared = {"PATH": os.environ["PATH"], "PYTHONPATH": shared["PYTHONPATH"]}
        command = [str(PYTHON), "-m", "tests.huggingface.serve_loops"]
        self.processes = [
            subprocess.Popen(
                command, env={**shared, **({"RANK": f"{rank}", "LOCAL_RANK": f"{rank}"} if number > 1 else {})},
                text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )
            for rank in range(number)
        ]  # fmt: skip

    def run(self, name: str, folder: Path, log: Path, end: str = "done", **options: Any) -> list[list[Any]]:
        """Run a loop that ends with an answer; return the lines of each rank."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps([name, str(folder), str(log), options]) + "\n")
            process.stdin.flush()
        for process in self.processes:
            assert process.stdout is not None
            answers = (line.removeprefix("answer:") for line in process.stdout if line.startswith("answer:"))
            assert end in json.loads(next(answers, '"it ended"'))
        logs = [Path(f"{log}-{rank}") for rank in range(len(self.processes))]
        return [[json.loads(line) for line in path.read_text().splitlines()] for path in logs]

    def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def teams() -> Iterator[dict[int, Ranks]]:
    if not PYTHON.exists():
        pytest.skip("there is no Python with transformers: tests/huggingface/setup makes .venv-huggingface")
    teams = {1: Ranks(1), 2: Ranks(2)}
    yield teams
    for team in teams.values():
        team.close()


BATCHES = {"trainer": "per_device_train_batch_size", "peft": "per_device_train_batch_size"}
SAME = [
    ("trainer", 1, {"gradient_accumulation_steps": 3, "train_sampling_strategy": "group_by_length"}, 6),
    ("trainer", 2, {"dataloader_num_workers": 1, "save_total_limit": 1}, 8),
    ("peft", 1, {"save_strategy": "epoch"}, 10),
    ("accelerate", 1, {"gradient_accumulation_steps": 3}, 6),
    ("accelerate", 1, {"skips": False}, 14),
    # accelerate has read the last batch of the epoch ahead.
    ("accelerate", 2, {}, 4),
    ("accelerate", 2, {"split_batches": True}, 8),
    ("lightning", 1, {"workers": 1}, 10),
    ("lightning", 2, {}, 6),
]


@pytest.mark.parametrize(("name", "number", "options", "stop"), SAME)
def test_equal_in_bits_on_the_same_ranks(
    name: str, number: int, options: dict[str, Any], stop: int, teams: dict[int, Ranks], tmp_path: Path
) -> None:
    whole = teams[number].run(name, tmp_path / "a", tmp_path / "a.log", **options)
    before = teams[number].run(name, tmp_path / "b", tmp_path / "b.log", stop=stop, **options)
    assert all(0 < len(mine) < len(theirs) for mine, theirs in zip(before, whole, strict=True))
    assert teams[number].run(name, tmp_path / "b", tmp_path / "b.log", **options) == whole


@pytest.mark.parametrize(
    ("name", "first", "then", "is_fixed"),
    [("trainer", 1, 2, False), ("trainer", 2, 1, True), ("accelerate", 1, 2, True)],
)
def test_each_sample_once_on_other_ranks(
    name: str, first: int, then: int, is_fixed: bool, teams: dict[int, Ranks], tmp_path: Path
) -> None:
    batch = BATCHES.get(name, "batch_size")
    sizes = {1: 4, 2: 2} if is_fixed else {1: 4, 2: 4}
    # In the middle of the second epoch.
    before = teams[first].run(
        name,
        tmp_path / "c",
        tmp_path / "before",
        stop=-(-SAMPLES // (sizes[first] * first)) + 4,
        **{batch: sizes[first]},
    )
    after = teams[then].run(name, tmp_path / "c", tmp_path / "after", **{batch: sizes[then]})
    seen = {epoch: Counter[int]() for epoch in range(EPOCHS)}
    for line in [line for lines in (*before, *after) for line in lines if line[0] != "weights"]:
        seen[line[0]].update(line[2])
    for counted in seen.values():
        assert set(counted) == set(range(SAMPLES))
        # accelerate and torch fill the last batches of an epoch.
        assert counted.total() - SAMPLES < 2 * sizes[then]
    assert len({json.dumps(lines[-1]) for lines in after}) == 1
    shutil.rmtree(tmp_path / "c")


def test_a_trainer_passes_over_a_checkpoint_whose_save_was_cut(teams: dict[int, Ranks], tmp_path: Path) -> None:
    whole = teams[1].run("trainer", tmp_path / "a", tmp_path / "a.log")
    teams[1].run("trainer", tmp_path / "b", tmp_path / "before", end="StoppedError", cut=6)
    assert (tmp_path / "b" / "checkpoint-6" / "model.safetensors").exists()
    assert teams[1].run("trainer", tmp_path / "b", tmp_path / "after") == [whole[0][4:]]


def test_accelerate_refuses_a_folder_whose_save_was_cut(teams: dict[int, Ranks], tmp_path: Path) -> None:
    whole = teams[2].run("accelerate", tmp_path / "a", tmp_path / "a.log")
    teams[2].run("accelerate", tmp_path / "b", tmp_path / "before", end="ZeroDivisionError", cut=4)
    assert (tmp_path / "b" / "step_4" / "model.safetensors").exists()
    # One rank's mark is enough, and the script writes its file last.
    (tmp_path / "b" / "step_4" / "mine.json").write_text('{"step": 4, "epoch": 0, "batches": 4}')
    (tmp_path / "b" / "step_4" / "herringbone-0.unfinished").unlink()
    refusal = f"{tmp_path}/b/step_4 is unfinished, because its save was cut"
    teams[2].run("accelerate", tmp_path / "b", tmp_path / "before", end=refusal)
    shutil.rmtree(tmp_path / "b" / "step_4")
    after = teams[2].run("accelerate", tmp_path / "b", tmp_path / "after")
    assert after == [lines[2:] for lines in whole]
