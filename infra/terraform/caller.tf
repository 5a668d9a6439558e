# The permissions of users who submit jobs: the requests of fit(), attach() and stop() of jobs and tuning jobs, and `herringbone images push`.

data "aws_iam_policy_document" "caller" {
  statement {
    sid = "Jobs"
    actions = [
      "sagemaker:AddTags",
      "sagemaker:CreateTrainingJob",
      "sagemaker:DescribeTrainingJob",
      "sagemaker:ListTags",
      "sagemaker:StopTrainingJob",
    ]
    resources = [local.training_jobs]
  }

  statement {
    sid = "TuningJobs"
    actions = [
      "sagemaker:AddTags",
      "sagemaker:CreateHyperParameterTuningJob",
      "sagemaker:DescribeHyperParameterTuningJob",
      "sagemaker:ListTags",
      "sagemaker:ListTrainingJobsForHyperParameterTuningJob",
      "sagemaker:StopHyperParameterTuningJob",
    ]
    resources = [local.tuning_jobs]
  }

  statement {
    sid       = "ListJobs"
    actions   = ["sagemaker:ListTrainingJobs"]
    resources = ["*"] # a list has no ARN
  }

  statement {
    sid       = "FindRole" # the SDK finds the role by its name
    actions   = ["iam:GetRole"]
    resources = [aws_iam_role.job.arn]
  }

  statement {
    sid       = "GiveRoleToJobs"
    actions   = ["iam:PassRole"]
    resources = [aws_iam_role.job.arn]

    condition {
      test     = "StringEquals"
      variable = "iam:PassedToService"
      values   = ["sagemaker.amazonaws.com"]
    }
  }

  statement {
    sid       = "FindInBucket"
    actions   = ["s3:GetBucketLocation", "s3:ListBucket"]
    resources = [aws_s3_bucket.this.arn]
  }

  statement {
    sid       = "Read"
    actions   = ["s3:GetObject"]
    resources = [for prefix in [local.code, local.data, local.checkpoints, local.jobs] : "${aws_s3_bucket.this.arn}/${prefix}/*"]
  }

  statement {
    sid       = "Upload"
    actions   = ["s3:AbortMultipartUpload", "s3:ListMultipartUploadParts", "s3:PutObject"]
    resources = [for prefix in [local.code, local.data] : "${aws_s3_bucket.this.arn}/${prefix}/*"]
  }

  statement {
    sid       = "ReadLogs"
    actions   = ["logs:DescribeLogStreams", "logs:GetLogEvents"]
    resources = [local.log_group, "${local.log_group}:*"]
  }

  statement {
    sid       = "ReadPrices"
    actions   = ["pricing:GetProducts"]
    resources = ["*"] # list prices have no ARN
  }

  statement {
    sid       = "LoginToRegistry"
    actions   = ["ecr:GetAuthorizationToken"]
    resources = ["*"] # a token is valid for the account, not for one repository
  }

  statement {
    sid = "PushImages"
    actions = [
      "ecr:BatchCheckLayerAvailability",
      "ecr:BatchGetImage",
      "ecr:CompleteLayerUpload",
      "ecr:DescribeImages",
      "ecr:DescribeRepositories",
      "ecr:GetDownloadUrlForLayer",
      "ecr:InitiateLayerUpload",
      "ecr:PutImage",
      "ecr:UploadLayerPart",
    ]
    resources = [for repository in aws_ecr_repository.this : repository.arn]
  }

  dynamic "statement" {
    for_each = var.kms_key_arn == null ? [] : [var.kms_key_arn]

    content {
      sid       = "Encrypt"
      actions   = ["kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKey"]
      resources = [statement.value]
    }
  }

  dynamic "statement" {
    for_each = var.kms_key_arn == null ? [] : [var.kms_key_arn]

    content {
      sid       = "EncryptVolumes"
      actions   = ["kms:CreateGrant"]
      resources = [statement.value]

      condition {
        test     = "Bool"
        variable = "kms:GrantIsForAWSResource"
        values   = ["true"]
      }
    }
  }
}

resource "aws_iam_policy" "caller" {
  name        = "${local.regional}-caller"
  description = "Submit, follow and stop training jobs of ${var.name}, and push their images"
  policy      = data.aws_iam_policy_document.caller.json
}

resource "aws_iam_role_policy_attachment" "caller" {
  for_each = var.caller_roles

  role       = each.value
  policy_arn = aws_iam_policy.caller.arn
}
