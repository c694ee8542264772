"""Programs that `make` runs and that are not part of the product."""
