"""`local` and `local_gpu`: hosts are containers. `backend` has the verbs."""
