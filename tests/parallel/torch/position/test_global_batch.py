"""`keep_global_batch`: on any number of ranks a step has the same samples, and the same gradient."""

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.position.checks import full_ranks, refuse
from herringbone_parallel.torch.position.global_batch import Divided, divide
from herringbone_parallel.torch.position.rank_places import notice
from herringbone_parallel.torch.position.training import Training

FULL, BATCH = 4, 5
LENGTH = 4 * FULL * BATCH + 3


def loader_of(ranks, rank, *, drop_last=(False, False), length=LENGTH, workers=0):
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.arange(length), torch.rand(length, 3, generator=generator))
    sampler = DistributedSampler(data, ranks, rank, seed=7, drop_last=drop_last[0])
    return DataLoader(data, BATCH, sampler=sampler, drop_last=drop_last[1], num_workers=workers)


def epoch_of(ranks, *, before=0, **options):
    """Return for each step the samples of all ranks that count, and the average of the ranks' gradients."""
    steps = []
    for rank in range(ranks):
        loader = loader_of(ranks, rank, **options)
        torch.manual_seed(2)
        model = torch.nn.Linear(3, 1)
        tracker = divide(loader, [model], FULL)
        if before:
            tracker.pass_over(before)
        number = -1
        for number, (names, inputs) in enumerate(loader):
            model.zero_grad()
            model(inputs).square().mean().backward()
            if rank == 0:
                steps.append((set(), torch.zeros(3)))
            kept = names.tolist()[: len(names) - tracker.repeated]
            assert not steps[number][0] & set(kept)
            steps[number][0].update(kept)
            steps[number][1].add_(model.weight.grad[0] / ranks)
            tracker.step()
        # A rank with fewer batches would leave the others waiting in a sum.
        assert number + 1 == len(steps) == tracker.order.left(before * FULL * BATCH)
        assert before or len(loader) == len(steps)
    return steps


@pytest.mark.parametrize("drop_last", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 7, 25])
def test_a_step_has_the_same_samples_and_gradient_on_any_number_of_ranks(ranks, drop_last):
    expected, found = (epoch_of(count, drop_last=drop_last) for count in (FULL, ranks))
    assert [samples for samples, _ in found] == [samples for samples, _ in expected]
    for (_, one), (_, other) in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    whole = [len(samples) for samples, _ in found]
    # Without drop_last, each sample of the epoch once, and none is repeated to fill a round.
    last = {(False, False): [3], (True, False): []}.get(drop_last, [])
    assert whole == [FULL * BATCH] * 4 + last


def test_an_epoch_goes_on_in_its_middle_on_other_ranks():
    whole = epoch_of(FULL)
    rest = epoch_of(3, before=2)
    assert [samples for samples, _ in rest] == [samples for samples, _ in whole[2:]]


def test_workers_read_the_same_batches():
    assert [samples for samples, _ in epoch_of(3, workers=1)] == [samples for samples, _ in epoch_of(3)]


def test_what_cannot_be_divided_is_refused_by_name():
    data = TensorDataset(torch.arange(8))

    class Own(DistributedSampler):
        pass

    for loader in (
        DataLoader(data, 2, shuffle=True),
        DataLoader(data, batch_sampler=BatchSampler(range(8), 2, drop_last=False)),
        DataLoader(data, 2, sampler=Own(data, 2, 0)),
        DataLoader(data, None, sampler=DistributedSampler(data, 2, 0)),
    ):
        with pytest.raises(ParallelError, match="keep_global_batch"):
            Divided(loader, FULL)


@pytest.fixture
def fewer(monkeypatch):
    monkeypatch.setenv("HERRINGBONE_FULL_HOSTS", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")


def test_the_batch_of_a_script_is_for_all_ranks_of_the_job(fewer, tmp_path, capsys):
    notice.cache_clear()
    assert full_ranks() == FULL
    model = torch.nn.Linear(3, 1)
    loader = loader_of(1, 0)
    training = Training(folder=tmp_path, model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1), loader=loader)
    assert [len(names) for names, _ in loader] == [20, 20, 20, 20, 3]
    assert training.batch == 0
    assert "keep_global_batch: 20 samples a step on 1 of 4 ranks: 20 a rank instead of 5" in capsys.readouterr().err


def test_other_loops_do_not_keep_it(fewer, tmp_path):
    model = torch.nn.Linear(3, 1)
    loaders = {"loader": loader_of(1, 0), "other": loader_of(1, 0)}
    with pytest.raises(ParallelError, match="loaders"):
        Training(folder=tmp_path, model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1), **loaders)
    with pytest.raises(ParallelError, match="keep_global_batch: Trainer does not keep"):
        refuse("Trainer")


def test_without_the_option_nothing_is_refused(monkeypatch):
    monkeypatch.delenv("HERRINGBONE_FULL_HOSTS", raising=False)
    refuse("Trainer")
