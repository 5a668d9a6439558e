# Private subnets that reach each other and S3, and nothing else: there is no internet gateway and no NAT.

data "aws_availability_zones" "this" {
  count = var.network == null ? 0 : 1
  state = "available"

  # Leave out the local zones, because they offer few instance types.
  filter {
    name   = "opt-in-status"
    values = ["opt-in-not-required"]
  }
}

locals {
  ec2     = "arn:${local.partition}:ec2:${var.region}:${local.account}"
  network = var.network == null ? {} : { this = var.network }
  # Always cut the network into four ranges, so that adding a zone does not change the subnets of the others.
  subnets = {
    for number in range(try(var.network.zones, 0)) :
    data.aws_availability_zones.this[0].names[number] => cidrsubnet(var.network.cidr, 2, number)
  }
}

resource "aws_vpc" "job" {
  for_each = local.network

  cidr_block = each.value.cidr
  tags       = { Name = var.name }
}

# EC2 creates this group by default. Without rules, it allows no traffic.
resource "aws_default_security_group" "job" {
  for_each = aws_vpc.job

  vpc_id = each.value.id
}

resource "aws_subnet" "job" {
  for_each = local.subnets

  vpc_id                  = aws_vpc.job["this"].id
  availability_zone       = each.key
  cidr_block              = each.value
  map_public_ip_on_launch = false
  tags                    = { Name = "${var.name}-${each.key}" }
}

resource "aws_route_table" "job" {
  for_each = aws_vpc.job

  vpc_id = each.value.id
  tags   = { Name = var.name }
}

resource "aws_route_table_association" "job" {
  for_each = aws_subnet.job

  subnet_id      = each.value.id
  route_table_id = aws_route_table.job["this"].id
}

resource "aws_vpc_endpoint" "s3" {
  for_each = aws_vpc.job

  vpc_id            = each.value.id
  service_name      = "com.amazonaws.${var.region}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = [aws_route_table.job[each.key].id]
  tags              = { Name = "${var.name}-s3" }
}

resource "aws_security_group" "job" {
  for_each = aws_vpc.job

  name        = "${var.name}-job"
  description = "Hosts of training jobs: everything among themselves, S3, and nothing else"
  vpc_id      = each.value.id
  tags        = { Name = "${var.name}-job" }
}

# Allow every protocol, because MPI and NCCL choose their ports, and EFA has no ports.
resource "aws_vpc_security_group_ingress_rule" "hosts" {
  for_each = aws_security_group.job

  security_group_id            = each.value.id
  referenced_security_group_id = each.value.id
  ip_protocol                  = "-1"
}

resource "aws_vpc_security_group_egress_rule" "hosts" {
  for_each = aws_security_group.job

  security_group_id            = each.value.id
  referenced_security_group_id = each.value.id
  ip_protocol                  = "-1"
}

resource "aws_vpc_security_group_egress_rule" "s3" {
  for_each = aws_security_group.job

  security_group_id = each.value.id
  prefix_list_id    = aws_vpc_endpoint.s3[each.key].prefix_list_id
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}
