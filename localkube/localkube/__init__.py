"""A real Kubernetes control plane for a laptop or CI, with nodes that run pods as local processes."""
