"""`slurm:PARTITION`: hosts are nodes of a Slurm cluster, one each. `backend` has the verbs."""
