"""One restore: which checkpoint, verified byte by byte, and into which arrays. Begin with ``restore``."""
