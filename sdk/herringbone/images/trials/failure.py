"""A trial's script: fails with an exit code of its own."""

import sys

print("failing on purpose", flush=True)
sys.exit(7)
