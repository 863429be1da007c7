"""Identifies the hardware and measures what it does during a run."""
