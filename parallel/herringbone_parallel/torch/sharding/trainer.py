"""Complete Hugging Face's Trainer for ranks that read the same batch, where `accelerate` lets our layers share it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

from herringbone_contract.library_hooks import require
from herringbone_parallel.torch.hugging_face_hooks import CONTEXT_TRAINER


def complete() -> None:
    """Change two methods of `Trainer` once, after the import of `transformers.trainer`.

    [1] Trainer divides the number of tokens in a batch by the number of ranks that read the batch. That is right for a
    sum over all ranks, and wrong for a rank's own number, which `average_tokens_across_devices=False` asks for.
    [2] Trainer multiplies a loss per token by the number of ranks of a context, because it expects each of them to have
    the sum over a part of the tokens. Here each of them has the sum over all tokens.
    """
    require(CONTEXT_TRAINER)
    trainer = sys.modules["transformers.trainer"].Trainer
    original, count = trainer.compute_loss, trainer._get_num_items_in_batch

    # [1]
    def _get_num_items_in_batch(self: Any, *args: Any, **options: Any) -> Any:
        if self.args.average_tokens_across_devices:
            return count(self, *args, **options)
        # Multiplied by the number of ranks, the quotient would not be exact: transformers 4.57 rounds it.
        accelerator = self.accelerator
        vars(self).update(accelerator=SimpleNamespace(parallelism_config=None), get_tp_size=lambda: 1)
        try:
            return count(self, *args, **options)
        finally:
            self.accelerator = accelerator
            del self.get_tp_size

    # [2]
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

    trainer.compute_loss, trainer._get_num_items_in_batch = compute_loss, _get_num_items_in_batch
