"""Finds the bottleneck of a training, settings that would make it faster, and faults of the machine."""
