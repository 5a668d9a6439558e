"""State dicts of `smp.nn.DistributedTransformerLMHead` and of Hugging Face's `GPT2LMHeadModel`, one from the other.

translated = smp.nn.huggingface.gpt2.translate_state_dict_to_hf_gpt2(model.state_dict(), max_seq_len=1024)
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

StateDict = dict[str, torch.Tensor]

_EMBEDDINGS = {
    "word_embedding": "transformer.wte",
    "position_embedding": "transformer.wpe",
    "transformer.layernorm": "transformer.ln_f",
    "lm_head": "lm_head",
}
# By layer; the weights of Hugging Face's Conv1D are transposed.
_LAYER = {
    "attention.pre_layernorm": "ln_1",
    "attention.dense": "attn.c_proj",
    "output.pre_layernorm": "ln_2",
    "output.dense1": "mlp.c_fc",
    "output.dense2": "mlp.c_proj",
}
_PACKED = ("attention.query", "attention.key", "attention.value")
_TRANSPOSED = ("attention.dense", "output.dense1", "output.dense2")
_OURS = re.compile(r"transformer\.seq_layers\.(\d+)\.(.+)\.(weight|bias)$")
_THEIRS = re.compile(r"transformer\.h\.(\d+)\.(.+)\.(weight|bias)$")


def translate_state_dict_to_hf_gpt2(
    state_dict: Mapping[str, torch.Tensor], max_seq_len: int | None = None
) -> StateDict:
    """Return the state dict of a `GPT2LMHeadModel` with the values of a `DistributedTransformerLMHead`.

    The model is one with `pre_layernorm`, `post_layernorm` and without token types. `max_seq_len` cuts the position
    embedding. Source: SMP v1, `smp.nn.huggingface.gpt2`.
    """
    result: StateDict = {}
    packed: dict[tuple[str, str], dict[str, torch.Tensor]] = {}
    for key, value in state_dict.items():
        name, _, kind = key.rpartition(".")
        match = _OURS.match(key)
        if match is None:
            cut = value[:max_seq_len] if name == "position_embedding" and max_seq_len is not None else value
            result[f"{_EMBEDDINGS.get(name, name)}.{kind}"] = cut
            continue
        layer, module, _ = match.groups()
        if module in _PACKED:
            packed.setdefault((layer, kind), {})[module] = value
        else:
            turned = value.t().contiguous() if kind == "weight" and module in _TRANSPOSED else value
            result[f"transformer.h.{layer}.{_LAYER[module]}.{kind}"] = turned
    for (layer, kind), parts in packed.items():
        whole = torch.cat([parts[module] for module in _PACKED])
        result[f"transformer.h.{layer}.attn.c_attn.{kind}"] = whole.t().contiguous() if kind == "weight" else whole
    return result


def translate_hf_state_dict_to_smdistributed_gpt2(state_dict: Mapping[str, torch.Tensor]) -> StateDict:
    """Return the state dict of a `DistributedTransformerLMHead` with the values of a `GPT2LMHeadModel`."""
    ours = {theirs: name for name, theirs in _LAYER.items()}
    embeddings = {theirs: name for name, theirs in _EMBEDDINGS.items()}
    result: StateDict = {}
    for key, value in state_dict.items():
        name, _, kind = key.rpartition(".")
        match = _THEIRS.match(key)
        if match is None:
            result[f"{embeddings.get(name, name)}.{kind}"] = value
            continue
        layer, module, _ = match.groups()
        start = f"transformer.seq_layers.{layer}"
        if module == "attn.c_attn":
            whole = value.t() if kind == "weight" else value
            for part, block in zip(_PACKED, whole.chunk(3), strict=True):
                result[f"{start}.{part}.{kind}"] = block.contiguous()
        elif module in ours:
            turned = value.t().contiguous() if kind == "weight" and ours[module] in _TRANSPOSED else value
            result[f"{start}.{ours[module]}.{kind}"] = turned
    return result
