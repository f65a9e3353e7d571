"""The watch: kopf's raw events wake jobs, and a cache keeps the objects that were seen last."""
