"""`local_process`: hosts are processes of this machine. `backend` has the verbs."""
