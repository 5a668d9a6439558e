"""S3 on every backend: channels, code, models and results in buckets; and an S3 front of a folder (`front/`)."""
