"""Commands that a person runs by hand."""
