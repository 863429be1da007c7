"""Comparisons of runs, computed from their recorded values alone."""
