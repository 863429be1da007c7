"""Records of a training during and after it: rows and totals, the run directory, and what MLflow gets of it."""
