"""`ssh:<inventory>`: hosts are machines that the user logs in to with OpenSSH. `backend` has the verbs."""
