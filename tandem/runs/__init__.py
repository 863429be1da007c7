"""Records of a training during and after it: rows and totals, checkpoints, the run directory for MLflow."""
