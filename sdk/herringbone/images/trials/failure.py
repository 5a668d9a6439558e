"""A trial's script: fail with an exit code that nothing else uses."""

import sys

print("failing on purpose", flush=True)
sys.exit(7)
