"""What the operator says about itself and its jobs: metrics, Kubernetes Events, health checks, log lines."""
