output "options" {
  description = "Options for an estimator: PyTorch(..., **options)"
  value = {
    role               = aws_iam_role.job.arn
    code_location      = "s3://${aws_s3_bucket.this.bucket}/${local.sdk}"
    output_path        = "s3://${aws_s3_bucket.this.bucket}/${local.jobs}"
    output_kms_key     = var.kms_key_arn
    volume_kms_key     = var.kms_key_arn
    subnets            = var.network == null ? null : [for subnet in aws_subnet.job : subnet.id]
    security_group_ids = var.network == null ? null : [for group in aws_security_group.job : group.id]
  }
}

output "bucket" {
  description = "Name of the bucket. Callers write herringbone/code/ and herringbone/data/; jobs write herringbone/jobs/ and herringbone/checkpoints/."
  value       = aws_s3_bucket.this.bucket
}

output "checkpoints" {
  description = "Prefix for the checkpoint_s3_uri of jobs. Add a folder for each job, because two jobs must not share one."
  value       = "s3://${aws_s3_bucket.this.bucket}/${local.checkpoints}"
}

output "registry" {
  description = "Registry for `herringbone images push`."
  value       = split("/", values(aws_ecr_repository.this)[0].repository_url)[0]
}

output "repositories" {
  description = "Each repository's full name, to which a tag is added."
  value       = { for name, repository in aws_ecr_repository.this : name => repository.repository_url }
}

output "caller_policy_arn" {
  description = "ARN of the policy that allows submitting jobs. Attach it to the users and roles that submit."
  value       = aws_iam_policy.caller.arn
}
