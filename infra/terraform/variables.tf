variable "region" {
  description = "Region in which jobs run. All resources are created in this region."
  type        = string

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "A region looks like us-east-1."
  }
}

variable "name" {
  description = "Prefix of the names of all resources. Two installations in one account need two names."
  type        = string
  default     = "herringbone"

  validation {
    # Names consist of this prefix, the region and the account. The limits are 63 characters for a bucket and 64 for a role.
    condition     = can(regex("^[a-z][a-z0-9-]{1,22}[a-z0-9]$", var.name))
    error_message = "A name has 3 to 24 lower-case letters, digits and hyphens. It starts with a letter, and does not end with a hyphen."
  }
}

variable "tags" {
  description = "Tags for all resources, in addition to Project."
  type        = map(string)
  default     = {}

  validation {
    condition     = !contains(keys(var.tags), "Project")
    error_message = "The tag Project is reserved for the name; use another key."
  }
}

variable "kms_key_arn" {
  description = "ARN of the KMS key that encrypts bucket, images and volumes. null: S3 and ECR use keys of their own."
  type        = string
  default     = null

  validation {
    condition     = var.kms_key_arn == null || can(regex("^arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+$", var.kms_key_arn))
    error_message = "Give the key's ARN, arn:aws:kms:<region>:<account>:key/<id>; IAM takes no alias."
  }
}

variable "keep_days" {
  description = <<-EOT
    Days after which the bucket deletes the files of jobs. null: never.
    code: sources, which the SDK uploads again when needed. checkpoints: checkpoints of jobs.
    jobs: models and other output. replaced: earlier versions of overwritten or deleted objects.
  EOT
  type = object({
    code        = optional(number, 90)
    checkpoints = optional(number, 90)
    jobs        = optional(number)
    replaced    = optional(number, 30)
  })
  default = {}

  validation {
    condition     = alltrue([for days in values(var.keep_days) : days == null ? true : days >= 1 && floor(days) == days])
    error_message = "Whole days, at least 1; or null, to keep files forever."
  }

  validation {
    # A job runs for up to 28 days, and reads its code again when it is restarted after a spot interruption.
    condition     = alltrue([for days in [var.keep_days.code, var.keep_days.checkpoints] : days == null ? true : days > 28])
    error_message = "A job may run for 28 days: keep code and checkpoints for longer than that."
  }
}

variable "repositories" {
  description = "ECR repositories to create. The defaults are the names that `herringbone images push` uses."
  type        = set(string)
  default     = ["herringbone/pytorch", "herringbone/tensorflow", "herringbone/mxnet"]

  validation {
    condition     = length(var.repositories) > 0 && alltrue([for name in var.repositories : can(regex("^[a-z0-9]+([._/-][a-z0-9]+)*$", name)) && length(name) <= 256])
    error_message = "Give at least one name, of lower-case letters and digits with . _ - / between them."
  }
}

variable "keep_images" {
  description = "Number of tagged images that each repository keeps. The oldest images are deleted first."
  type        = number
  default     = 50

  validation {
    condition     = var.keep_images >= 1 && floor(var.keep_images) == var.keep_images
    error_message = "keep_images is a whole number, at least 1."
  }
}

variable "other_repository_arns" {
  description = "ARNs of ECR repositories of other accounts from which jobs may pull, such as AWS's deep-learning images: arn:aws:ecr:us-east-1:763104351884:repository/pytorch-training"
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.other_repository_arns : can(regex("^arn:aws[a-z-]*:ecr:[a-z0-9-]+:[0-9]{12}:repository/.+$", arn))])
    error_message = "Each ARN looks like arn:aws:ecr:<region>:<account>:repository/<name>."
  }
}

variable "caller_roles" {
  description = "Names of roles in this account that submit jobs. The caller policy is attached to them. Attach it to others by its ARN, which is an output."
  type        = set(string)
  default     = []
}

variable "network" {
  description = "Private network for jobs that must not reach the internet: its address range, with one subnet per zone. null: no network."
  type = object({
    cidr  = optional(string, "10.40.0.0/16")
    zones = optional(number, 2)
  })
  default = null

  validation {
    condition     = var.network == null ? true : can(cidrnetmask(var.network.cidr)) && try(tonumber(split("/", var.network.cidr)[1]) >= 16 && tonumber(split("/", var.network.cidr)[1]) <= 24, false)
    error_message = "network.cidr is an IPv4 range from /16 to /24, such as 10.40.0.0/16."
  }

  validation {
    condition     = var.network == null ? true : contains([1, 2, 3, 4], var.network.zones)
    error_message = "network.zones is 1 to 4."
  }
}

variable "destroy_contents" {
  description = "true: `terraform destroy` may delete a bucket that contains objects, and repositories that contain images."
  type        = bool
  default     = false
}
