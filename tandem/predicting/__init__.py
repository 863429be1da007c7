"""A trained model on new data: `tandem predict`, and the package of code and weights that MLflow loads."""
