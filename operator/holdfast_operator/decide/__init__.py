"""The operator's decisions, pure: no input or output, no clock, no Kubernetes. Begin with ``precedence``.

Read in this order:

- ``precedence``: the rules in their order, and what happens with a rule's answer. ``actions``: what an answer can be.
- ``facts``: what the operator observes. ``members``: which pod is which worker, by the numbers in the status.
- ``rules``: one file each, in the order of ``precedence.PRECEDENCE``.
- What several rules need:
  ``attempts`` (how an attempt ends and the next begins), ``replacement`` (new pods for workers on doomed nodes, while
  training continues), ``stopping`` (save and stop all workers), ``ending`` (the job ends), ``causes`` (why a worker
  ended), ``notices`` (what announces the loss of a node or pod), ``notice_memory`` (what the status remembers of them),
  ``preemption_record`` (the binding notice when an attempt ends), ``requested_saves`` (request a save and judge its
  outcome), ``setbacks`` (pods that become unusable before their attempt begins), ``backoff``, ``failure_budget``,
  ``failure_history``, ``step_progress``, ``run_inspection`` (what the run's folder contains).
- What follows without a decision: ``reports`` (from the agents' reports to the status), ``effects`` (pods and timers),
  ``directives`` (to the agents), ``children`` (a pod's manifest), ``conditions``, ``job_goodput``.

Words:

- An attempt is *active* when its trainers may run. The next attempt is *prepared* (``status.transition``), either after
  the active one has ended or while it still trains (``transition.training``: a *replacement*).
- A *status decision* is stored before anything follows from it.
- To *switch* is to end the active attempt and begin the prepared one.
- A *member* is the pod that is a worker now. An *incoming* pod becomes a member at the switch.
- A node is *doomed* when a notice says that it goes away, or when it is lost.
"""
