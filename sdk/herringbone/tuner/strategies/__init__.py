"""The decisions of a search: the next trials, early stops, its end, its beginning from earlier results. Pure."""
