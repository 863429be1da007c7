"""One training on one device: batches, step, epochs and out-of-memory fallbacks. It refers to no task by name."""
