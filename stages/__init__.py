"""The pipeline's stages, one module each. tandem/stage.py calls the `main(...)` of the stage that dvc.yaml names."""
