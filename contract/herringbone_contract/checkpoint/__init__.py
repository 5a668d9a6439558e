"""The form of checkpoints on disk: the ranks write and read it, the command lists and verifies it."""
