"""Clusters for tests: manifests, kubectl, the chart, and Holdfast installed with jobs that run."""
