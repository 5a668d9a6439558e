"""`ssh:<inventory>`: hosts are machines of one's own, reached by OpenSSH. `backend` has the verbs."""
