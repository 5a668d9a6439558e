"""Stand-ins for parts of torch and of our libraries that need other ranks, devices or files."""
