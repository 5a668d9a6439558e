"""The examples on TensorFlow: the same losses on any number of ranks, and those of PyTorch from the same weights."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.examples.conftest import EXAMPLES
from tests.parallel.tensorflow.ranks import PYTHON, Ranks

HUGGINGFACE = Path(__file__).parents[2] / ".venv-huggingface" / "bin" / "python"
PROGRAMS = Path(__file__).with_name("programs")
pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(400)]
Load = Callable[[str, str], ModuleType]
# 2 threads of TensorFlow on each of 4 ranks would only switch; and one thread adds in one order.
ONE_CORE = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    folder = tmp_path_factory.mktemp("ranks")
    if not PYTHON.exists():
        pytest.skip("there is no Python with TensorFlow: tests/tensorflow/setup makes .venv-tf")
    # As in a job, the requirements are installed for these ranks only.
    requirements = EXAMPLES / "mask_rcnn" / "src_tensorflow" / "requirements.txt"
    command = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile"]
    subprocess.run([*command, "--target", folder / "packages", "-r", requirements], check=True)
    # Four ranks of Mask R-CNN take half a minute alone, and minutes beside two other pieces of .ci/run.
    pool = Ranks(folder, PROGRAMS, folder / "packages", limit=300.0)
    yield pool
    pool.end()


def check_equal(ranks: Ranks, example: str, data: Path, settings: dict[str, Any]) -> tuple[list[float], dict[str, Any]]:
    """Train on 1, 2 (with a helper) and 4 ranks. Check that all have the same losses and metrics, and return them."""
    results = {}
    for size in (1, 2, 4):
        parts = settings["global-batch"] // (settings["rank-batch"] * size)
        variables = {"HERRINGBONE_AGGREGATION_FREQUENCY": str(parts), **ONE_CORE}
        if size == 2:
            with ranks.helper() as servers:
                results[size] = ranks.run(
                    "on_tensorflow.trained", 2, example, str(data), settings, **variables, **servers
                )
        else:
            results[size] = ranks.run("on_tensorflow.trained", size, example, str(data), settings, **variables)
    [(losses, metrics)] = results[1]
    assert len(losses) == settings["steps"]
    for rank_losses, rank_metrics in results[2] + results[4]:
        assert rank_losses == pytest.approx(losses, abs=1e-5)
        assert rank_metrics == pytest.approx(metrics, abs=1e-3)
    return losses, metrics


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("questions")
    code = (
        "import questions, sys, pathlib; folder = pathlib.Path(sys.argv[1]);"
        "questions.write(folder / 'train', paragraphs=200, seed=1);"
        "questions.write(folder / 'test', paragraphs=10, seed=2)"
    )
    subprocess.run([sys.executable, "-c", code, folder], cwd=EXAMPLES / "bert_squad", check=True)
    return folder


SQUAD = {
    "global-batch": 32, "rank-batch": 8, "epochs": 8, "lr": 2e-3, "warmup": 0.5, "length": 32, "stride": 8, "width": 48,
    "vocabulary": 200,
}  # fmt: skip


def test_squad(ranks: Ranks, questions: Path) -> None:
    losses, metrics = check_equal(ranks, "bert_squad", questions, {**SQUAD, "steps": 50})
    assert losses[-1] < losses[0] - 1
    assert metrics.keys() == {"eval_f1", "eval_exact_match"}
    assert metrics["eval_f1"] > 15


def test_16_bits(ranks: Ranks, questions: Path) -> None:
    settings = {**SQUAD, "steps": 12, "rank-batch": 32}
    [(wide, _)] = ranks.run("on_tensorflow.trained", 1, "bert_squad", str(questions), settings)
    [(narrow, _)] = ranks.run(
        "on_tensorflow.trained", 1, "bert_squad", str(questions), {**settings, "precision": "bf16"}
    )
    assert narrow != wide
    assert narrow == pytest.approx(wide, abs=0.05)
    arguments = ("bert_squad", str(questions), {**settings, "precision": "fp16"})
    [message] = ranks.run("on_tensorflow.refused", 1, *arguments)
    assert message.startswith("--precision fp16 needs a GPU")


def test_pretraining_in_both_phases(ranks: Ranks, tmp_path: Path, module: Load) -> None:
    module("bert_pretrain", "topics").write(tmp_path)
    settings = {
        "vocabulary": 500, "width": 32, "depth": 1, "global-batch": 256, "rank-batch": 64, "long-rank-batch": 32,
        "lr": 6e-2, "warmup": 0.2, "length": 32, "long-length": 64, "epochs": 1, "long-epochs": 1, "steps": 15,
        "weight-decay": 0.01,
    }  # fmt: skip
    losses, metrics = check_equal(ranks, "bert_pretrain", tmp_path, settings)
    assert losses[-1] < losses[0] - 0.3
    assert metrics.keys() == {"eval_accuracy", "eval_next_accuracy", "eval_loss"}


def test_mask_rcnn(ranks: Ranks, tmp_path: Path, module: Load) -> None:
    shapes = module("mask_rcnn", "shapes")
    shapes.write(tmp_path / "train", pictures=40, seed=1)
    shapes.write(tmp_path / "test", pictures=4, seed=2)
    # In fp32 another order of sums chooses other boxes.
    settings = {
        "model": "small", "double": True, "global-batch": 4, "rank-batch": 1, "lr": 0.02, "weight-decay": 1e-4,
        "epochs": 2, "steps": 8,
    }  # fmt: skip
    losses, metrics = check_equal(ranks, "mask_rcnn", tmp_path, settings)
    assert sum(losses[-4:]) < sum(losses[:4])
    assert metrics.keys() == {"eval_mask_ap", "eval_box_ap"}
    [message] = ranks.run("on_tensorflow.refused", 1, "mask_rcnn", str(tmp_path), {**settings, "precision": "bf16"})
    assert "computes in fp64" in message
    [message] = ranks.run(
        "on_tensorflow.refused", 1, "mask_rcnn", str(tmp_path), settings, SM_CHANNEL_WEIGHTS=str(tmp_path)
    )
    assert "which TensorFlow does not read" in message


def test_layers_begin_with_weights_of_their_own(ranks: Ranks) -> None:
    assert ranks.run("on_tensorflow.alike", 1) == [0]


def test_lines_of_all_ranks(ranks: Ranks) -> None:
    assert ranks.run("on_tensorflow.gathered", 2) == [["", "ä"]] * 2


@pytest.mark.parametrize("name", ["adamw", "radam"])
def test_optimizers_take_the_steps_of_torch(ranks: Ranks, name: str) -> None:
    torch = pytest.importorskip("torch")
    # RAdam's first five steps have another formula than the later ones.
    gradients = [[0.3 * step - 1, 0.5, -0.1 * step] for step in range(9)]
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))
    settings = {"lr": 0.1, "weight_decay": 0.1}
    if name == "radam":
        optimizer = torch.optim.RAdam([weight], **settings, decoupled_weight_decay=True)
    else:
        optimizer = torch.optim.AdamW([weight], **settings)
    for gradient in gradients:
        weight.grad = torch.tensor(gradient)
        optimizer.step()
    [values] = ranks.run("on_tensorflow.optimized", 1, name, [1.0, -2.0, 0.5], gradients)
    assert values == pytest.approx(weight.tolist(), abs=1e-5)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not HUGGINGFACE.exists():
        pytest.skip("there is no Python with transformers: tests/huggingface/setup makes .venv-huggingface")
    folder = tmp_path_factory.mktemp("reference")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    subprocess.run([HUGGINGFACE, PROGRAMS / "bert_reference.py", folder], env=environment, check=True)
    return folder


@pytest.mark.huggingface
@pytest.mark.parametrize(("example", "weights"), [("bert_squad", 39), ("bert_pretrain", 46)])
def test_the_loss_and_the_gradients_of_torch(ranks: Ranks, reference: Path, example: str, weights: int) -> None:
    [differences] = ranks.run("on_tensorflow.compared", 1, example, str(reference / example))
    assert differences["missing"] == 0
    assert differences["weights"] == weights
    assert differences["loss"] <= 1e-5
    assert differences["gradient"] <= 1e-5


def test_files_of_weights_that_are_wrong(tmp_path: Path, module: Load) -> None:
    weights, folder = module("bert_squad/shared", "common.weights"), tmp_path / "model"
    folder.mkdir()
    with pytest.raises(ValueError, match=r"the folder has no config.json"):
        weights.read("pretrained", str(folder))
    folder.joinpath("config.json").write_text('{"model_type": "gpt2"}')
    folder.joinpath("model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{broken}")
    with pytest.raises(ValueError, match="its model_type is 'gpt2'; this framework's example has 'bert'"):
        weights.read("pretrained", str(folder))
    folder.joinpath("config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"model.safetensors is no .safetensors file, or is damaged"):
        weights.read("pretrained", str(folder))
    header = b'{"embeddings.LayerNorm.gamma": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}'
    content = len(header).to_bytes(8, "little") + header + b"\x80\x3f\x00\xc0"
    folder.joinpath("model.safetensors").write_bytes(content)
    model = weights.read("pretrained", str(folder))
    assert {name: value.tolist() for name, value in model.weights.items()} == {
        "bert.embeddings.LayerNorm.weight": [1.0, -2.0]
    }
    with pytest.raises(ValueError, match=r"has the shape \(2,\) instead of \(3,\)"):
        weights.fitting(model, {"bert.embeddings.LayerNorm.weight": (3,)}, heads=())
    with pytest.raises(ValueError, match=r"bert\.x is missing"):
        weights.fitting(model, {"bert.x": (3,), "qa_outputs.weight": (2, 2)}, heads=("qa_outputs.",))
