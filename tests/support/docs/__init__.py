"""The documentation's pages for tests."""
