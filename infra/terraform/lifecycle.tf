resource "aws_s3_bucket_lifecycle_configuration" "this" {
  # Rules for earlier versions have an effect only after versioning is enabled.
  depends_on = [aws_s3_bucket_versioning.this]
  bucket     = aws_s3_bucket.this.id

  rule {
    id     = "unfinished-uploads"
    status = "Enabled"

    filter {}

    abort_incomplete_multipart_upload {
      days_after_initiation = 7
    }
  }

  dynamic "rule" {
    for_each = var.keep_days.replaced == null ? [] : [var.keep_days.replaced]

    content {
      id     = "replaced"
      status = "Enabled"

      filter {}

      noncurrent_version_expiration {
        noncurrent_days = rule.value
      }
    }
  }

  dynamic "rule" {
    for_each = {
      for prefix, days in {
        (local.code)        = var.keep_days.code
        (local.checkpoints) = var.keep_days.checkpoints
        (local.jobs)        = var.keep_days.jobs
      } : prefix => days if days != null
    }

    content {
      id     = rule.key
      status = "Enabled"

      filter {
        prefix = "${rule.key}/"
      }

      expiration {
        days = rule.value
      }
    }
  }
}
