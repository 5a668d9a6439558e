"""Measurements of scripts that evaluate, have sparse gradients, use the compiler, or threads that use GPUs."""

from __future__ import annotations

import inspect
import threading
import time
from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch", minversion="2.4")

from torch import nn  # noqa: E402
from torch.distributions import Categorical  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.data import DataLoader, Dataset, TensorDataset  # noqa: E402

from herringbone_parallel.core.prediction.measurement import Kind  # noqa: E402
from tests.parallel.torch.measure.scripts import bytes_by_kind, measured  # noqa: E402


def loader(samples: int, batch: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(samples, 64), torch.arange(samples) % 10), batch_size=batch)


def train(model: nn.Module, batches: Any, optimizer: torch.optim.Optimizer) -> None:
    for inputs, labels in batches:
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def test_evaluation_between_steps_is_no_part_of_the_step() -> None:
    def loop(evaluated: int) -> None:
        model = nn.Linear(64, 10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        # An epoch of one batch, as a small sample of the data has.
        for _ in range(2):
            train(model, loader(32, 32), optimizer)
            with torch.no_grad():
                for inputs, _ in loader(evaluated, 100):
                    model(inputs).argmax(1).tolist()

    alone, evaluating = measured(lambda: loop(0)), measured(lambda: loop(300))
    assert (evaluating.batch, evaluating.epoch_samples) == (32, 32)
    # The loops make their loaders in the step, too.
    assert Counter(call.phase for call in evaluating.calls) == Counter(call.phase for call in alone.calls if call.phase)


def test_batches_of_two_loaders_are_one_step() -> None:
    def loop() -> None:
        model = nn.Linear(64, 10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        source, target = iter(loader(96, 32)), iter(loader(48, 16))
        for _ in range(2):
            first = model(next(source)[0])
            second = model(next(target)[0])
            (first.mean() - second.mean()).backward()
            optimizer.step()

    assert measured(loop).batch == 48


class Slow(Dataset[torch.Tensor]):
    """Takes a millisecond for each sample."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(1e-3)
        return torch.full((64,), float(index))


def test_data_of_a_step_that_accumulates() -> None:
    def loop() -> None:
        model = nn.Linear(64, 10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number, inputs in enumerate(DataLoader(Slow(), batch_size=4)):
            model(inputs).sum().backward()
            if number % 8 == 7:
                optimizer.step()

    measurement = measured(loop)
    assert measurement.batch == 32
    assert measurement.data_seconds >= 32e-3


def test_module_of_the_loss_adds_no_samples() -> None:
    def loop() -> None:
        model, loss = nn.Linear(64, 10), nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            loss(model(torch.randn(8, 64)), torch.arange(8)).backward()
            optimizer.step()

    assert measured(loop).batch == 8


@pytest.mark.filterwarnings("ignore:Sparse invariant")
def test_sparse_gradients() -> None:
    def loop() -> None:
        words, head = nn.Embedding(5000, 64, sparse=True), nn.Linear(64, 64)
        graph = torch.sparse_coo_tensor(torch.randint(0, 80, (2, 200)), torch.ones(200), (80, 80)).coalesce()
        optimizers = torch.optim.SparseAdam(words.parameters()), torch.optim.SGD(head.parameters(), lr=0.1)
        for _ in range(3):
            states = words(torch.arange(80)).relu()
            head(torch.sparse.mm(graph, states)).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    measurement = measured(loop)
    whole = 5000 * 64 * 4
    # A dense gradient would be as large as the parameter.
    assert sum(tensor.bytes >= whole for tensor in measurement.tensors if tensor.kind is Kind.GRADIENT) == 0
    assert bytes_by_kind(measurement)[Kind.STATE] >= 2 * whole


def test_compiled_models_and_checked_distributions() -> None:
    def loop() -> None:
        model = torch.compile(nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 256)))
        assert next(iter(model.state_dict())) == "_orig_mod.0.weight"
        assert len(model._orig_mod) == 2
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        @torch.compile(mode="max-autotune")
        def loss_of(scores: torch.Tensor) -> torch.Tensor:
            choices = Categorical(probs=scores.softmax(-1))
            result: torch.Tensor = -choices.log_prob(choices.sample()).mean()
            return result

        for _ in range(2):
            loss_of(model(torch.randn(64, 64))).backward()
            optimizer.step()

    measurement = measured(loop)
    assert [module.path for module in measurement.modules] == ["", "0", "1"]
    # torch's own function is back.
    assert torch.compile.__module__ == "torch"


def test_padded_evaluation_of_a_transformer() -> None:
    def loop() -> None:
        layer = nn.TransformerEncoderLayer(64, 4, batch_first=True)
        model = nn.TransformerEncoder(layer, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs, padded = torch.randn(8, 50, 64), torch.arange(50).expand(8, 50) > 40
        model.eval()
        with torch.no_grad():
            model(inputs, src_key_padding_mask=padded)
        model.train()
        for _ in range(2):
            model(inputs, src_key_padding_mask=padded).sum().backward()
            optimizer.step()

    assert measured(loop).batch == 8


def test_lengths_and_threads_of_gpus() -> None:
    def loop() -> None:
        model = nn.LSTM(64, 64, batch_first=True).to("cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        results: list[torch.Tensor] = []

        def forward() -> None:
            inputs = torch.randn(16, 20, 64, device="cuda")
            packed = nn.utils.rnn.pack_padded_sequence(inputs, torch.arange(20, 4, -1), batch_first=True)
            results.append(nn.utils.rnn.pad_packed_sequence(model(packed)[0])[0].sum())

        for _ in range(2):
            thread = threading.Thread(target=forward)
            thread.start()
            thread.join()
            results.pop().backward()
            optimizer.step()

    assert measured(loop, device="cuda").parameters


def test_a_lazy_module_gets_its_parameters_in_its_first_call() -> None:
    def loop() -> None:
        model = nn.Sequential(nn.LazyLinear(8), nn.ReLU())
        model(torch.zeros(2, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()

    assert [parameter.shape for parameter in measured(loop).parameters] == [(8, 4), (8,)]


def test_a_sharding_library_sees_the_parameters_of_torchs_function() -> None:
    def loop() -> None:
        # As `torch.sagemaker.transform` asks for it.
        from torch.distributed.fsdp import fully_shard

        assert "reshard_after_forward" in inspect.signature(fully_shard).parameters
        model = nn.Linear(4, 4)
        fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()

    assert measured(loop).wrapper == "fully_shard"
