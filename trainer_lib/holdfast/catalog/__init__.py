"""Checkpoints seen from outside a training: list, verify, load, compare, and seal those of other programs."""
