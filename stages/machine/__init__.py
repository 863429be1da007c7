"""What the hardware is, and what it does while we time it."""
