"""Everything that leaves this process towards the API server."""
