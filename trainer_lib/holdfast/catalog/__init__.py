"""Checkpoints outside a training run: list, verify, load, compare, and seal those of other programs."""
