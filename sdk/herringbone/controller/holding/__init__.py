"""The processes that keep a job's checkpoints in memory."""
