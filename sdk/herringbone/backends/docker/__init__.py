"""The backend of `local` and `local_gpu`: hosts are containers of one engine. Start reading in `backend`."""
