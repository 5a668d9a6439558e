data "aws_caller_identity" "this" {}
data "aws_partition" "this" {}

locals {
  account   = data.aws_caller_identity.this.account_id
  partition = data.aws_partition.this.partition
  # IAM names are unique in an account, not in a region, so they contain the region.
  regional = "${var.name}-${var.region}"

  training_jobs = "arn:${local.partition}:sagemaker:${var.region}:${local.account}:training-job/*"
  tuning_jobs   = "arn:${local.partition}:sagemaker:${var.region}:${local.account}:hyper-parameter-tuning-job/*"
  # The service's own log group, for all training jobs of the account in this region.
  log_group = "arn:${local.partition}:logs:${var.region}:${local.account}:log-group:/aws/sagemaker/TrainingJobs"

  # The folders of the bucket, and their writers. The SDK uploads code and data to a folder with its own name.
  sdk         = "herringbone"
  code        = "${local.sdk}/code"        # the caller writes sources
  data        = "${local.sdk}/data"        # the caller writes channels
  checkpoints = "${local.sdk}/checkpoints" # jobs write checkpoints
  jobs        = "${local.sdk}/jobs"        # jobs write models and other output
}
