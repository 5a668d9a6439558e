"""`import smdistributed.modelparallel` in a launched rank. Scripts and transformers ask for the version."""

# The last version of AWS's library whose names the torch library here serves, and not Herringbone's own version.
__version__ = "1.15.0"
