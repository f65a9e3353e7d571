"""Storage for tests: states and stores, damage, processes that save and restore, and one that is killed meanwhile."""
