"""`k8s:NAMESPACE`: each host of a job is a pod of a Kubernetes cluster."""
