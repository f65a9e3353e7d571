"""One pass over one job (observe, decide, act), and the queue that starts the passes."""
