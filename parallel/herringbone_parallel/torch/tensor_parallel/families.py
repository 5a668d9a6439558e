"""Tensor-parallel plans for families of Hugging Face models that have none of their own.

Names are those of transformers 4.4x and 5.x. A pattern that matches no module of a model is passed over, so one plan
serves a family's base model and all its heads. Embeddings and heads of a vocabulary are split by its entries.
"""

from __future__ import annotations

from torch import nn

_GPT2 = {
    "*h.*.attn.c_attn": "packed_colwise:3",
    "*h.*.crossattention.c_attn": "packed_colwise:2",
    "*h.*.crossattention.q_attn": "colwise",
    "*h.*.attn.c_proj": "rowwise",
    "*h.*.crossattention.c_proj": "rowwise",
    "*h.*.mlp.c_fc": "colwise",
    "*h.*.mlp.c_proj": "rowwise",
    "*wte": "embedding_rowwise",
    "lm_head": "colwise_gather_output",
}
_GPTJ = {
    "*h.*.attn.*q_proj": "colwise",
    "*h.*.attn.*k_proj": "colwise",
    "*h.*.attn.*v_proj": "colwise",
    "*h.*.attn.*out_proj": "rowwise",
    "*h.*.mlp.fc_in": "colwise",
    "*h.*.mlp.fc_out": "rowwise",
    "*h.*.mlp.c_fc": "colwise",
    "*h.*.mlp.c_proj": "rowwise",
    "*wte": "embedding_rowwise",
    "lm_head": "colwise_gather_output",
}
_BERT = {
    "*attention.self.query": "colwise",
    "*attention.self.key": "colwise",
    "*attention.self.value": "colwise",
    "*attention.output.dense": "rowwise",
    "*crossattention.self.query": "colwise",
    "*layer.*.intermediate.dense": "colwise",
    "*layer.*.output.dense": "rowwise",
    "*embeddings.word_embeddings": "embedding_rowwise",
    "cls.predictions.decoder": "colwise_gather_output",
    "lm_head.decoder": "colwise_gather_output",
}
_VIT = {
    # transformers 5 and 4.
    "*attention.q_proj": "colwise",
    "*attention.k_proj": "colwise",
    "*attention.v_proj": "colwise",
    "*attention.o_proj": "rowwise",
    "*mlp.fc1": "colwise",
    "*mlp.fc2": "rowwise",
    "*attention.attention.query": "colwise",
    "*attention.attention.key": "colwise",
    "*attention.attention.value": "colwise",
    "*attention.output.dense": "rowwise",
    "*layer.*.intermediate.dense": "colwise",
    "*layer.*.output.dense": "rowwise",
}
_T5 = {
    "*SelfAttention.q": "colwise",
    "*SelfAttention.k": "colwise",
    "*SelfAttention.v": "colwise",
    "*SelfAttention.o": "rowwise",
    "*SelfAttention.relative_attention_bias": "embedding_heads",
    "*EncDecAttention.q": "colwise",
    "*EncDecAttention.k": "colwise",
    "*EncDecAttention.v": "colwise",
    "*EncDecAttention.o": "rowwise",
    "*DenseReluDense.wi": "colwise",
    "*DenseReluDense.wi_0": "colwise",
    "*DenseReluDense.wi_1": "colwise",
    "*DenseReluDense.wo": "rowwise",
    "shared": "embedding_rowwise",
    "lm_head": "colwise_gather_output",
}
_OPT = {
    "*self_attn.q_proj": "colwise",
    "*self_attn.k_proj": "colwise",
    "*self_attn.v_proj": "colwise",
    "*self_attn.out_proj": "rowwise",
    "*encoder_attn.q_proj": "colwise",
    "*encoder_attn.k_proj": "colwise",
    "*encoder_attn.v_proj": "colwise",
    "*encoder_attn.out_proj": "rowwise",
    "*layers.*.fc1": "colwise",
    "*layers.*.fc2": "rowwise",
}
_NEOX = {
    "*attention.query_key_value": "colwise",
    "*attention.dense": "rowwise",
    "*mlp.dense_h_to_4h": "colwise",
    "*mlp.dense_4h_to_h": "rowwise",
    "embed_out": "colwise_gather_output",
}
# By `model_type` of the configuration.
_FAMILIES = {
    "gpt2": _GPT2,
    "gptj": _GPTJ,
    "gpt_neo": _GPTJ,
    "gpt_neox": _NEOX,
    "bert": _BERT,
    "roberta": _BERT,
    "electra": _BERT,
    "vit": _VIT,
    "deit": _VIT,
    "t5": _T5,
    "mt5": _T5,
    "opt": _OPT,
    "bart": _OPT,
}


def family_plan(model: nn.Module) -> dict[str, str] | None:
    """Return the plan of the model's family, None for a model of an unknown family."""
    return _FAMILIES.get(getattr(getattr(model, "config", None), "model_type", ""))
