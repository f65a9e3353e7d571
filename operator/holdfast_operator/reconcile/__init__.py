"""One pass over one job: observe the world, decide, act on it; and the queue that says whose turn it is."""
