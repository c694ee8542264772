"""What `make` runs that is no part of the product."""
