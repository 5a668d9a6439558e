"""Train a small language model to predict the next token, as Hugging Face's `run_clm.py` does."""

import os
from dataclasses import dataclass

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)


@dataclass
class ModelArguments:
    model_type: str = "gpt2"
    # Rows of different lengths: the labels behind their ends are ignored.
    padded: bool = False


def make_model(model_type):
    if model_type == "llama":
        config = LlamaConfig(
            vocab_size=64,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=16,
        )
        return LlamaForCausalLM(config)
    config = GPT2Config(
        vocab_size=64,
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def blocks(rows, seed, padded):
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(0, 64, (rows, 1), generator=generator)
    tokens = (starts + torch.arange(16) * 3) % 64
    labels = tokens.clone()
    if padded:
        lengths = torch.randint(3, 17, (rows, 1), generator=generator)
        labels[torch.arange(16) >= lengths] = -100
    return [{"input_ids": row, "labels": ignored} for row, ignored in zip(tokens, labels, strict=True)]


def main():
    model_arguments, arguments = HfArgumentParser((ModelArguments, TrainingArguments)).parse_args_into_dataclasses()
    set_seed(arguments.seed)
    trainer = Trainer(
        model=make_model(model_arguments.model_type),
        args=arguments,
        train_dataset=blocks(48, 1, model_arguments.padded),
        eval_dataset=blocks(16, 2, model_arguments.padded),
        data_collator=default_data_collator,
    )
    result = trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
    trainer.log_metrics("train", result.metrics)
    trainer.save_state()
    metrics = trainer.evaluate()
    trainer.save_metrics("eval", metrics)
    trainer.save_model(os.environ.get("SM_MODEL_DIR", arguments.output_dir))


if __name__ == "__main__":
    main()
