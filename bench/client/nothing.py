"""An empty training script, so that only the work around it is measured."""
