"""Train a small BERT to classify sequences, as Hugging Face's `run_glue.py` does: arguments, metrics, resume."""

import os

import numpy
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)


class Sentences(torch.utils.data.Dataset):
    """Rows of token numbers; the label says whether there are more even ones than odd ones."""

    def __init__(self, rows, seed):
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(3, 64, (rows, 12), generator=generator)
        self.labels = ((self.tokens % 2).sum(1) < 6).long()

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {
            "input_ids": self.tokens[index],
            "attention_mask": torch.ones_like(self.tokens[index]),
            "labels": self.labels[index],
        }


def compute_metrics(prediction):
    logits = prediction.predictions[0] if isinstance(prediction.predictions, tuple) else prediction.predictions
    right = numpy.argmax(logits, axis=1) == prediction.label_ids
    return {"accuracy": float(right.mean()), "rows": len(right)}


def main():
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    set_seed(arguments.seed)
    config = BertConfig(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=12,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=arguments,
        train_dataset=Sentences(48, 1),
        eval_dataset=Sentences(23, 2),
        compute_metrics=compute_metrics,
    )
    trainer.train(resume_from_checkpoint=arguments.resume_from_checkpoint)
    metrics = trainer.evaluate()
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)
    trainer.save_state()
    trainer.save_model(os.environ.get("SM_MODEL_DIR", arguments.output_dir))


if __name__ == "__main__":
    main()
