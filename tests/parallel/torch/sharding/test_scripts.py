"""The small names of `torch.sagemaker` that need no ranks: attention, old checkpoints, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from herringbone_contract.checkpoint.manifest import NEWEST
from herringbone_contract.errors import ParallelError
from herringbone_parallel.torch.sharding import checkpointing
from herringbone_parallel.torch.sharding.attention import FlashGroupedQueryAttention, FlashSelfAttention
from herringbone_parallel.torch.sharding.scripts import last_integer, limit_num_subdirs
from herringbone_parallel.torch.sharding.unavailable import LlamaFlashAttention, MoEConfig


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Attention as the formula says; shapes (batch, heads, sequence, size)."""
    return torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + mask, -1) @ v


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("alibi", [False, True])
def test_self_attention_in_each_form_of_its_input(causal: bool, alibi: bool) -> None:
    q, k, v = torch.randn(3, 2, 4, 6, 8, dtype=torch.float64).unbind()
    bias = torch.randn(1, 4, 1, 6, dtype=torch.float64) if alibi else None
    mask = torch.full((6, 6), float("-inf")).triu(1).double() if causal else torch.zeros(6, 6).double()
    expected = plain(q, k, v, mask if bias is None else mask + bias)
    attention = FlashSelfAttention()
    stacked = torch.cat([q, k, v], 1)
    for qkv, layout in [
        ((q, k, v), "b h s d"),
        (stacked, "b h s d"),
        (stacked.transpose(1, 2), "b s h d"),
        (tuple(part.transpose(1, 2) for part in (q, k, v)), "b s h d"),
    ]:
        torch.testing.assert_close(attention(qkv, attn_mask=bias, causal=causal, layout=layout), expected)
    assert attention((q, k, v), cast_dtype=torch.float32).dtype == torch.float32


def test_grouped_queries_share_keys_and_values() -> None:
    q, kv = torch.randn(2, 4, 6, 8), torch.randn(2, 2 * 2, 6, 8)
    k, v = (part.repeat_interleave(2, 1) for part in kv.chunk(2, 1))
    torch.testing.assert_close(FlashGroupedQueryAttention()(q, kv, layout="b h s d"), plain(q, k, v, torch.zeros(6, 6)))
    with pytest.raises(ParallelError, match="layout is 'b h s d' or 'b s h d', not 'h b s d'"):
        FlashGroupedQueryAttention()(q, kv, layout="h b s d")


def test_old_checkpoints_are_deleted_by_their_step(tmp_path: Path) -> None:
    (tmp_path / ".gpt-0steps").mkdir()
    for name in ("gpt-5steps", "gpt-100steps", "gpt-20steps", "other"):
        (tmp_path / name).mkdir()
    limit_num_subdirs(str(tmp_path), 2, last_integer, r"^.*\d+steps$", log=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".gpt-0steps", "gpt-100steps", "gpt-20steps", "other"]
    limit_num_subdirs(str(tmp_path), 0, last_integer, r"^.*\d+steps$", log=True)
    limit_num_subdirs(str(tmp_path), 1, last_integer, r"^.*\d+steps$", log=False)
    assert len(list(tmp_path.iterdir())) == 4


def test_the_error_of_a_save_in_the_background_is_raised_once_and_its_number_never_returned(tmp_path: Path) -> None:
    state = {"w": torch.ones(4)}
    checkpointing.async_save(state, checkpoint_id=tmp_path / "before")
    before = checkpointing.maybe_finalize_async_calls()[-1]
    # The file that names the newest checkpoint cannot be written.
    (tmp_path / "full" / NEWEST).mkdir(parents=True)
    checkpointing.async_save(state, checkpoint_id=tmp_path / "full" / "a")
    with pytest.raises(ParallelError, match="Is a directory"):
        checkpointing.async_save(state, checkpoint_id=tmp_path / "b")
    checkpointing.async_save(state, checkpoint_id=tmp_path / "b")
    with pytest.raises(ParallelError, match="Is a directory"):
        checkpointing.maybe_finalize_async_calls(blocking=False)
    assert checkpointing.maybe_finalize_async_calls() == [before + 2]


def test_a_load_of_tensors_unpickles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpointing.save({"w": torch.ones(4), "epoch": 3}, checkpoint_id=tmp_path / "a")
    state = {"w": torch.zeros(4), "epoch": 0}
    checkpointing.load(state, checkpoint_id=tmp_path / "a")
    assert (state["w"].tolist(), state["epoch"]) == ([1.0] * 4, 3)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("unpickled"))
    checkpointing.load({"w": torch.zeros(4)}, checkpoint_id=tmp_path / "a")


@pytest.mark.parametrize(("name", "remedy"), [(MoEConfig, "hybrid_shard_degree"), (LlamaFlashAttention, "sdpa")])
def test_what_is_not_there_says_what_to_do_instead(name: type, remedy: str) -> None:
    with pytest.raises(ParallelError, match=remedy):
        name(smp_moe=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "checkpoint_id is missing"),
        ({"checkpoint_id": "s3://bucket/key"}, "is in S3: write to /opt/ml/checkpoints"),
        ({"checkpoint_id": "here", "s3_region": "eu-west-1"}, "not available in this release: s3_region"),
        ({"checkpoint_id": "here", "queue": object()}, "not available in this release: queue"),
    ],
)
def test_a_checkpoint_goes_to_a_folder(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ParallelError, match=message):
        checkpointing.save({"model": {"w": torch.zeros(1)}}, **arguments)  # type: ignore[arg-type]
