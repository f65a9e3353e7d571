"""The rules, one per file; ``precedence.PRECEDENCE`` gives their order. No rule imports another."""
