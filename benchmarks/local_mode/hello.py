"""The user's script: each rank says when it is there, and when it leaves."""

import os

rank = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
print(f"first line of rank {rank}", flush=True)
print(f"last line of rank {rank}", flush=True)
