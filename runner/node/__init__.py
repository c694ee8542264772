"""What runs on a node: standard library only, Python 3.10 syntax, packed into one `.pyz`."""
