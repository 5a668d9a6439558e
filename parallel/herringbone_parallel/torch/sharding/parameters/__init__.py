"""Serve what scripts do with parameters that are split over ranks, or refuse it by name."""
