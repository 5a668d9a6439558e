"""Scripts that use AWS's SDK v2, rewritten for Herringbone without being run."""
