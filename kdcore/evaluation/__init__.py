"""Predictions, metrics, out-of-domain mapping, cost and submission files."""
