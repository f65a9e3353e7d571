"""When to save, what to keep and which states count as healthy: frozen values and pure functions.

Save rules are in ``save_rules``, ``save_adaptive`` and ``save_when_unstable``; keep rules are in ``keep_rules``.
"""
