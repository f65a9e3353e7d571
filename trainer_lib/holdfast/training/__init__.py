"""What a training program holds: the session and the checkpointer, and what runs behind them. Begin with ``session``."""
