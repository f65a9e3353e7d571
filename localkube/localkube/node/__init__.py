"""A Kubernetes node whose pods are process groups of this machine."""
