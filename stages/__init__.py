"""The pipeline's stages, one module each. tandem/stage.py calls the `main(...)` of the stage that dvc.yaml names.

other_seeds.py is a part of `replicate`.
"""
