"""The mock of S3 for the tests of Pipe mode."""

from tests.aws_mock import s3, s3_server

__all__ = ["s3", "s3_server"]
