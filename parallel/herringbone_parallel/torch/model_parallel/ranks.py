"""This rank's numbers, sizes and groups under SMP v1's names; `core.ranks` explains them."""

from __future__ import annotations

from herringbone_parallel.core.ranks import Ranks
from herringbone_parallel.torch.model_parallel import state

_ranks = Ranks(state.get)
rank = _ranks.rank
size = _ranks.size
local_rank = _ranks.local_rank
local_size = _ranks.local_size
pp_rank = _ranks.pp_rank
pp_size = _ranks.pp_size
tp_rank = _ranks.tp_rank
tp_size = _ranks.tp_size
mp_rank = _ranks.mp_rank
mp_size = _ranks.mp_size
rdp_rank = _ranks.rdp_rank
rdp_size = _ranks.rdp_size
dp_rank = _ranks.dp_rank
dp_size = _ranks.dp_size
get_world_group = _ranks.get_world_group
get_mp_group = _ranks.get_mp_group
get_dp_group = _ranks.get_dp_group
get_pp_group = _ranks.get_pp_group
get_tp_group = _ranks.get_tp_group
get_rdp_group = _ranks.get_rdp_group
