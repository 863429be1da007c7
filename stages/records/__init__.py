"""What is kept of a training while it runs and after it: rows and totals, checkpoints, the run directory for MLflow."""
