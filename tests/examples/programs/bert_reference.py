"""Write a small BERT of transformers with random weights, a batch, its loss and its gradients, for other frameworks.

Run it in a Python with transformers: `bert_reference.py FOLDER`. FOLDER/bert_squad and FOLDER/bert_pretrain get
`config.json`, `model.safetensors`, and `reference.npz`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from torch.nn.functional import cross_entropy

VOCABULARY, LENGTH, EXAMPLES = 60, 12, 4


def inputs(random: np.random.Generator) -> dict[str, np.ndarray]:
    used = np.array([[12], [9], [12], [5]])
    positions = np.arange(LENGTH)
    tokens = np.where(positions < used, random.integers(5, VOCABULARY, (EXAMPLES, LENGTH)), 0)
    kinds = ((positions >= 4) & (positions < used)).astype(np.int32)
    return {"tokens": tokens.astype(np.int32), "kinds": kinds, "mask": positions < used}


def trains_padding(model: torch.nn.Module) -> torch.nn.Module:
    """Let the embedding of padding have a gradient, as in the examples' encoders. transformers keeps it as it is."""
    model.bert.embeddings.word_embeddings.padding_idx = None
    return model


def write(folder: Path, model: torch.nn.Module, batch: dict[str, np.ndarray], loss: torch.Tensor) -> None:
    loss.backward()
    model.save_pretrained(folder)
    values = {f"batch.{name}": array for name, array in batch.items()} | {"loss": loss.detach().numpy()}
    for name, parameter in model.named_parameters():
        values[f"gradient.{name}"] = parameter.grad.numpy()
    np.savez(folder / "reference.npz", **values)


def main(folder: Path) -> None:
    torch.manual_seed(3)
    random = np.random.default_rng(3)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
        max_position_embeddings=20, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.3,
    )  # fmt: skip
    batch = inputs(random)
    arguments = {
        "input_ids": torch.from_numpy(batch["tokens"]).long(),
        "token_type_ids": torch.from_numpy(batch["kinds"]).long(),
        "attention_mask": torch.from_numpy(batch["mask"]).long(),
    }
    batch |= {"begins": np.array([4, 5, 0, 2], np.int32), "ends": np.array([6, 5, 0, 4], np.int32)}
    model = trains_padding(transformers.BertForQuestionAnswering(config))
    output = model(**arguments)
    losses = (
        cross_entropy(scores, torch.from_numpy(batch[name]).long())
        for name, scores in (("begins", output.start_logits), ("ends", output.end_logits))
    )
    write(folder / "bert_squad", model, batch, sum(losses) / 2)

    batch = {name: batch[name] for name in ("tokens", "kinds", "mask")}
    places = np.array([1, 7, 13, 30, 37], np.int32)
    batch |= {"places": places, "words": random.integers(5, VOCABULARY, 5).astype(np.int32)}
    batch["follows"] = np.array([1, 0, 0, 1], np.int32)
    model = trains_padding(transformers.BertForPreTraining(config))
    output = model(**arguments)
    words = output.prediction_logits.flatten(0, 1)[torch.from_numpy(places).long()]
    # HuggingFace's scores have the other order: "follows" comes first.
    pairs = output.seq_relationship_logits.flip(-1)
    loss = cross_entropy(words, torch.from_numpy(batch["words"]).long())
    write(
        folder / "bert_pretrain", model, batch, loss + cross_entropy(pairs, torch.from_numpy(batch["follows"]).long())
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
