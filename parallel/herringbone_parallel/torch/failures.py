"""What a rank raises when another one has failed."""

from __future__ import annotations

from herringbone_spec.errors import ParallelError


class PeerFailedError(ParallelError):
    """Another rank of the pipeline, or of a replica of it, failed; its own traceback says where."""
