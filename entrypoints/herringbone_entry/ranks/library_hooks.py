"""The hooks of a rank's own program into torch (`herringbone_contract.library_hooks`)."""

from __future__ import annotations

from herringbone_contract.library_hooks import Hook, named_in

_MAKES = named_in("torch.distributed.rendezvous:_create_c10d_store")
# Rank 0's rendezvous store.
STORE = (Hook("torch.distributed.rendezvous:TCPStore", "have the store listen at one address only", _MAKES),)
