"""Amazon's services: whose credentials, which region, and what their errors mean."""
