"""A script that trains nothing: what is measured is everything around it."""
