"""What a person runs by hand."""
