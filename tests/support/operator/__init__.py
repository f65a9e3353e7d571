"""The operator for tests: its decisions in memory, its reconciler in this process, its process, and doubles of it."""
