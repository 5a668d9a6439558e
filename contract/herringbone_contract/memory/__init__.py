"""The tier of checkpoints in memory: what ranks and holders send each other, and pure rules. Standard library only."""
