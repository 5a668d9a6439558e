"""The backend of `local_process`: hosts are processes of this machine. Start reading in `backend`."""
