"""MLflow: the directory of a run in progress, the publisher that sends it, the store, and finding runs in it."""
