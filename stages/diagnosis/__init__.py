"""What bounds a training, what would help, and whether this machine is in order."""
