"""One training on one device: batches, step, epochs, and what is done when memory runs out. Knows no task by name."""
