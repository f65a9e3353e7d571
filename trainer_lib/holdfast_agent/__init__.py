"""The first process of every worker's container. It runs one trainer per attempt and reports on it to the operator.

Standard library and contract only. One loop (``agent``) owns the state (``agent_state``), carries out what a pure
function of the state decides (``reacting``) and reports the whole state (``reporting``). The threads for the operator
(``sync_client``), the trainer (``trainer_socket``), its output (``container_output``) and storage (``inspection``) only
put events (``loop_events``) into the loop's queue.
"""
