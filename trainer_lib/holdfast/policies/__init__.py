"""When to save, what to keep, and which states count as healthy: frozen values, pure."""
