"""The product's decisions, pure: no input or output, no clock, no Kubernetes. Begin with ``plan``.

In the order in which they are best read:

- ``plan``: the rules in their order, and what becomes of an answer. ``actions``: what an answer can be.
- ``facts``: what is seen. ``members``: who is a worker now, by the numbers in the status.
- The rules: ``lifecycle`` (deletion, completion, failure, suspension), ``moves`` (notices), ``recovery``, ``admission``.
- What they share: ``attempts`` (how one ends and the next begins), ``causes`` (why a worker ended), ``notices`` (what says
  that a place goes away), ``saves`` (asking for one and judging it), ``budget``, ``progress``, ``storage``, ``failures``.
- What follows without a decision: ``learn`` (from reports to status), ``carry`` (pods, timers), ``directives`` (to the
  agents), ``children`` (a pod's manifest), ``conditions``, ``goodput``.

Words: an attempt is *active* when its processes may run. The next one is *prepared* (``status.transition``), either while
the active one trains on (``transition.training``, a *move*) or after it has ended. A *turn* is a decision that is stored
before anything follows from it. To *switch* is to end the active attempt of a move. A *member* is the pod that stands for
an index now, an *incoming* pod will after the switch.
"""
