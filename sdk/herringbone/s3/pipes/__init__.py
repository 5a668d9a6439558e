"""Channels of Pipe mode: FIFOs that a process next to the job fills, one for each epoch."""
