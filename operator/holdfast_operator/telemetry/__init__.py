"""What the operator says of itself: metrics, Events, health, log lines."""
