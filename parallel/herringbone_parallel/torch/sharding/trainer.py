"""Complete Hugging Face's Trainer for context parallelism, where `accelerate` lets our layers share the sequences."""

from __future__ import annotations

import sys
from typing import Any


def complete() -> None:
    """Change `Trainer.compute_loss` once, after the import of `transformers.trainer`.

    Trainer multiplies a loss per token by the number of ranks of a context, because it expects each of them to have the
    sum over a part of the tokens. Here each of them has the sum over all tokens.
    """
    trainer = sys.modules["transformers.trainer"].Trainer
    original = trainer.compute_loss

    def compute_loss(
        self: Any, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        result = original(self, model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch)
        degrees = getattr(self.accelerator, "parallelism_config", None)
        if degrees is None or not degrees.cp_enabled or num_items_in_batch is None:
            return result
        if not (self.args.average_tokens_across_devices and (self.model_accepts_loss_kwargs or self.compute_loss_func)):
            return result
        if return_outputs:
            loss, outputs = result
            return loss / degrees.cp_size, outputs
        return result / degrees.cp_size

    trainer.compute_loss = compute_loss
