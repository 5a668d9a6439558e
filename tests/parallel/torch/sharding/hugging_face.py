"""Models of the equality matrix from transformers, made from a configuration; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers
from torch import nn

from tests.parallel.torch.sharding.models import (
    CLASSES,
    HEADS,
    POSITIONS,
    VOCABULARY,
    WIDTH,
    Model,
    images,
    padded_text,
    text,
    translation,
)


def _decoder(family: str, **options: Any) -> Callable[[], nn.Module]:
    config = getattr(transformers, f"{family}Config")(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        max_position_embeddings=POSITIONS,
        **options,
    )
    return lambda: getattr(transformers, f"{family}ForCausalLM")(config)


def _bert() -> nn.Module:
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            intermediate_size=2 * WIDTH,
            max_position_embeddings=POSITIONS,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def _gpt2() -> nn.Module:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=WIDTH,
            n_layer=2,
            n_head=HEADS,
            n_positions=POSITIONS,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
            loss_type="ForCausalLM",
        )
    )


def _t5() -> nn.Module:
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=VOCABULARY,
            d_model=WIDTH,
            d_kv=WIDTH // HEADS,
            d_ff=2 * WIDTH,
            num_layers=2,
            num_heads=HEADS,
            dropout_rate=0.0,
            decoder_start_token_id=0,
        )
    )


def _bart() -> nn.Module:
    return transformers.BartForConditionalGeneration(
        transformers.BartConfig(
            vocab_size=VOCABULARY,
            d_model=WIDTH,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=HEADS,
            decoder_attention_heads=HEADS,
            encoder_ffn_dim=2 * WIDTH,
            decoder_ffn_dim=2 * WIDTH,
            max_position_embeddings=POSITIONS,
            dropout=0.0,
            decoder_start_token_id=0,
            forced_eos_token_id=None,
        )
    )


def _vit() -> nn.Module:
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=WIDTH,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            intermediate_size=2 * WIDTH,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            image_size=16,
            patch_size=4,
            num_labels=CLASSES,
        )
    )


def _resnet() -> nn.Module:
    return transformers.ResNetForImageClassification(
        transformers.ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=CLASSES
        )
    )


MODELS = {
    "bert": Model(_bert, padded_text),
    "gpt2": Model(_gpt2, text),
    "t5": Model(_t5, translation, refused={"context": "makes positions from the length of its input"}),
    "bart": Model(_bart, translation),
    "qwen2, grouped": Model(_decoder("Qwen2", num_key_value_heads=2), text),
    "llama, tied": Model(_decoder("Llama", tie_word_embeddings=True), padded_text),
    "resnet": Model(
        _resnet,
        images,
        refused={"context": "no stack of layers with attention", "tensor": "leave tensor_parallel_degree at 1"},
    ),
    "vit": Model(_vit, images),
}
