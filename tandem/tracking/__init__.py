"""Records a run: its result files, and MLflow: the directory of a run in progress, the publisher that sends it, the
store, and finding runs in it.
"""
