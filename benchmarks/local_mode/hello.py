"""The user's script: each rank prints its first and its last line."""

import os

rank = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
print(f"first line of rank {rank}", flush=True)
print(f"last line of rank {rank}", flush=True)
