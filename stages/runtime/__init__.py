"""What stages share and no task knows: where files lie, the device, measuring, batches, the loop, checkpoints, tracking."""
