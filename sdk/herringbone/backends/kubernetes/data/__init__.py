"""Results of a job in claims and in S3, its large files, and jobs of other machines."""
