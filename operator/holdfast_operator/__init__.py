"""The operator: it watches TrainingJobs, decides, and writes pods and status.

Begin with ``decide`` to learn what it does, and with ``app`` to learn how its parts are connected.
"""
