"""The one form of checkpoints: written by any mesh, read by any other, and by torch without this library."""
