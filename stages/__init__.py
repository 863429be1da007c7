"""The pipeline's stages, one module each. tandem/stage calls the `main(...)` of the stage that dvc.yaml names."""
