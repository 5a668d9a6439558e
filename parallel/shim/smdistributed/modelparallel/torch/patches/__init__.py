"""SMP v1 keeps `checkpoint` here."""
