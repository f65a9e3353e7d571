"""Access to the API server: every request of the operator passes through here, except those of kopf's watch."""
