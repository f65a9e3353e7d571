"""The product's decisions, pure: no input or output, no clock, no Kubernetes. Begin with ``plan``."""
