"""The bytes on storage: durable file operations, digests, and the layout of plain Orbax checkpoints."""
