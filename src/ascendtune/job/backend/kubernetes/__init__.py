"""Kubernetes: one module per kind of job, `pod.py` is what they have in common, `manifest.py` puts them into a file."""
