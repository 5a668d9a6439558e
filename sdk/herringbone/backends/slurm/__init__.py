"""The backend of `slurm:PARTITION`: each host is a node of a Slurm cluster. Start reading in `backend`."""
