"""What scripts do with parameters that are split over ranks: served as in one process, or refused by name."""
