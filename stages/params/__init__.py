"""params.yaml: what it may hold (schema), how its words are read and checked, and what a preset changes."""
