"""The kinds of device: a module with a class `Kind` for each, which alone knows what differs between them."""
