# The permissions of jobs: SageMaker assumes this role for each job.

data "aws_iam_policy_document" "trust" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["sagemaker.amazonaws.com"]
    }

    # Only jobs of this account and region may use the role, whoever sends the request to SageMaker.
    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [local.account]
    }

    condition {
      test     = "ArnLike"
      variable = "aws:SourceArn"
      values   = ["arn:${local.partition}:sagemaker:${var.region}:${local.account}:*"]
    }
  }
}

data "aws_iam_policy_document" "job" {
  statement {
    sid       = "FindInBucket"
    actions   = ["s3:ListBucket"]
    resources = [aws_s3_bucket.this.arn]

    condition {
      test     = "StringLike"
      variable = "s3:prefix"
      values   = [for prefix in [local.code, local.data, local.checkpoints, local.jobs] : "${prefix}/*"]
    }
  }

  statement {
    sid       = "WhereIsBucket"
    actions   = ["s3:GetBucketLocation"]
    resources = [aws_s3_bucket.this.arn]
  }

  statement {
    sid       = "Read"
    actions   = ["s3:GetObject"]
    resources = [for prefix in [local.code, local.data, local.checkpoints, local.jobs] : "${aws_s3_bucket.this.arn}/${prefix}/*"]
  }

  statement {
    sid       = "Write"
    actions   = ["s3:PutObject", "s3:AbortMultipartUpload"]
    resources = [for prefix in [local.checkpoints, local.jobs] : "${aws_s3_bucket.this.arn}/${prefix}/*"]
  }

  statement {
    sid       = "Log"
    actions   = ["logs:CreateLogGroup", "logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]
    resources = [local.log_group, "${local.log_group}:*"]
  }

  statement {
    sid       = "Measure"
    actions   = ["cloudwatch:PutMetricData"]
    resources = ["*"] # metrics have no ARN

    condition {
      test     = "StringLike"
      variable = "cloudwatch:namespace"
      values   = ["/aws/sagemaker/*"]
    }
  }

  statement {
    sid       = "LoginToRegistry"
    actions   = ["ecr:GetAuthorizationToken"]
    resources = ["*"] # a token is valid for the account, not for one repository
  }

  statement {
    sid       = "PullImages"
    actions   = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
    resources = concat([for repository in aws_ecr_repository.this : repository.arn], tolist(var.other_repository_arns))
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

  dynamic "statement" {
    for_each = aws_security_group.job

    content {
      sid     = "JoinNetwork"
      actions = ["ec2:CreateNetworkInterface"]
      resources = concat(
        [for subnet in aws_subnet.job : subnet.arn],
        [statement.value.arn, "${local.ec2}:network-interface/*"],
      )
    }
  }

  dynamic "statement" {
    for_each = aws_vpc.job

    content {
      sid       = "UseInterfaces"
      actions   = ["ec2:CreateNetworkInterfacePermission", "ec2:DeleteNetworkInterface"]
      resources = ["${local.ec2}:network-interface/*"]

      condition {
        test     = "ArnEquals"
        variable = "ec2:Vpc"
        values   = [statement.value.arn]
      }
    }
  }

  dynamic "statement" {
    for_each = aws_vpc.job

    content {
      sid = "LookAtNetwork"
      actions = [
        "ec2:DeleteNetworkInterfacePermission",
        "ec2:DescribeDhcpOptions",
        "ec2:DescribeNetworkInterfaces",
        "ec2:DescribeSecurityGroups",
        "ec2:DescribeSubnets",
        "ec2:DescribeVpcs",
      ]
      resources = ["*"] # EC2 accepts no narrower resource for these actions
    }
  }
}

resource "aws_iam_role" "job" {
  name               = "${local.regional}-job"
  description        = "Permissions of the SageMaker training jobs of ${var.name}"
  assume_role_policy = data.aws_iam_policy_document.trust.json
}

resource "aws_iam_role_policy" "job" {
  name   = "job"
  role   = aws_iam_role.job.id
  policy = data.aws_iam_policy_document.job.json
}
