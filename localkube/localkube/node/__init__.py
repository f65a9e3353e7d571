"""A Kubernetes node that runs the containers of its pods as processes of this machine."""
