"""One save, from the snapshot in memory to the manifest that makes it exist. Begin with ``save``."""
