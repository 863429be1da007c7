"""A run as data: its rows and totals, the files with their keys, inputs and versions, and reading them again."""
