from __future__ import annotations

import pytest

from herringbone_contract.errors import ParallelError
from herringbone_parallel.core.pipeline.microbatch import microbatch_size


def test_a_batch_is_cut_evenly() -> None:
    assert microbatch_size(64, 4, what="images") == 16


@pytest.mark.parametrize(("batch", "advice"), [(63, "60 or 64"), (3, "batch size of 4")])
def test_a_batch_that_does_not_divide_names_both_numbers(batch: int, advice: str) -> None:
    with pytest.raises(ParallelError, match=rf"4 microbatches do not divide a batch of {batch} .*{advice}"):
        microbatch_size(batch, 4, what="argument 'images'")
