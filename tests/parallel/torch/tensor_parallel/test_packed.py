from __future__ import annotations

import pytest

from herringbone_parallel.torch.tensor_parallel.packed import rows_for


@pytest.mark.parametrize(("rows", "blocks", "degree"), [(6, 3, 2), (6, 2, 3), (12, 3, 4), (4, 1, 2)])
def test_every_rank_gets_its_part_of_every_block_in_order(rows: int, blocks: int, degree: int) -> None:
    block = rows * degree // blocks
    part = block // degree
    for receiver in range(degree):
        received = [
            rank * rows + row for rank in range(degree) for row in rows_for(rank, rows, blocks, degree)[receiver]
        ]
        starts = [index * block + receiver * part for index in range(blocks)]
        assert received == [start + offset for start in starts for offset in range(part)]
