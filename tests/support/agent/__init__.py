"""The agent for tests: its process with all that surrounds it, and its end of the trainer's socket."""
