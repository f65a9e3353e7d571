"""The product's decisions, pure: no input or output, no clock, no Kubernetes. Begin with ``plan``.

In the order in which they are best read:

- ``plan``: the rules in their order, and what becomes of a rule's answer. ``actions``: what an answer can be.
- ``facts``: what the operator observes. ``members``: which pod is which worker, by the numbers in the status.
- ``rules``: one file each, in the order of ``plan.PRECEDENCE``.
- What the rules share: ``attempts`` (how one ends and the next begins), ``replacement`` (new pods for doomed workers while
  training goes on), ``ending`` and ``stopping`` (of the whole job), ``causes`` (why a worker ended), ``notices`` (patterns
  that say that a place goes away), ``preemption_record``, ``saves`` (asking for one and judging it), ``budget``,
  ``progress``, ``storage``, ``failures``.
- What follows without a decision: ``reports`` (from agents' reports to the status), ``effects`` (pods and timers),
  ``directives`` (to the agents), ``children`` (a pod's manifest), ``conditions``, ``goodput``.

Words: an attempt is *active* when its processes may run. The next one is *prepared* (``status.transition``), either while
the active one trains on (``transition.training``: a *replacement*) or after it has ended. A *status decision* is stored
before anything follows from it. To *switch* is to end the active attempt in favour of a prepared replacement. A *member*
is the pod that stands for an index now; an *incoming* pod will after the switch.
"""
