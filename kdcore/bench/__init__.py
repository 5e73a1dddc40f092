"""Measures what kdflow promises about speed and memory: `python -m kdcore.bench`, or `make bench`."""
