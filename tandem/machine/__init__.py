"""Measures what a device and the machine do during a run."""
