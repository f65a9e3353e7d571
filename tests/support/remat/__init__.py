"""Models for the tests and the benchmark of rematerialisation."""
