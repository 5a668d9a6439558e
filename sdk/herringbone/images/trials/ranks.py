"""A trial's script: print the rank of this process under mpirun."""

import os

print("trial rank", os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK"), flush=True)
