"""A trial's script: says which one of mpirun's processes it is."""

import os

print("trial rank", os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK"), flush=True)
