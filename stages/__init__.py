"""The pipeline's stages, one module each: `main(...)` is what `flows/stage.py` calls for the dvc.yaml entry of the
same name.
"""
