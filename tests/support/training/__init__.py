"""Training for tests: programs, the processes that run them as ranks, and what those share."""
