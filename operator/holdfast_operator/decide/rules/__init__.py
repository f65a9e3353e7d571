"""One rule, one file; ``plan.PRECEDENCE`` gives their order. No rule imports another."""
