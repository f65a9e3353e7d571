"""The operator: watches TrainingJobs, decides, and writes pods and status. Begin reading in ``app``."""
