data "aws_caller_identity" "this" {}
data "aws_partition" "this" {}

locals {
  account   = data.aws_caller_identity.this.account_id
  partition = data.aws_partition.this.partition
  # Names of IAM are an account's, not a region's.
  regional = "${var.name}-${var.region}"

  training_jobs = "arn:${local.partition}:sagemaker:${var.region}:${local.account}:training-job/*"
  # The service's own log group, for all training jobs of the account in this region.
  log_group = "arn:${local.partition}:logs:${var.region}:${local.account}:log-group:/aws/sagemaker/TrainingJobs"

  # What lies where in the bucket, and who writes it. The SDK puts code and data below its own name.
  sdk         = "herringbone"
  code        = "${local.sdk}/code"        # the caller: sources
  data        = "${local.sdk}/data"        # the caller: channels
  checkpoints = "${local.sdk}/checkpoints" # jobs
  jobs        = "${local.sdk}/jobs"        # jobs: models and other output
}
