"""The first process of every worker's container: runs one trainer per attempt and speaks for it to the operator.

Standard library and contract only. One loop (`agent`) owns the state (`state`), does what a pure function of it says
(`reacting`) and says what there is to say (`reporting`); threads for the operator (`sync`), the trainer
(`trainer_socket`), its output (`output`) and storage (`inspection`) only put events into its queue.
"""
