"""Access to AWS: credentials, region, boto3's clients, and the meaning of AWS's errors."""
