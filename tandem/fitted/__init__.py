"""Models that are fitted in one epoch, without steps: their networks, the fits, and the `Trainer` that runs a fit.

params.yaml names these networks like those of tandem/models. No other package of tandem/ imports this one, so it can be
removed: tandem/parts.py finds its networks, and tandem/training/opening.py its trainer, by their files' names.
"""
