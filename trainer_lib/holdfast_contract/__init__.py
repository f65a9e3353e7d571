"""The one place for every fact that two parts of Holdfast share.

Labels, environment names, ports, exit codes, reasons, metric names, the checkpoint manifest and the messages between
library, agent and operator live here, each with a sentence on who writes it and who reads it. Everything except
``holdfast_contract.api`` and ``holdfast_contract.crd`` is standard library only, so that the agent stays light.
"""
