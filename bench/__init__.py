"""Benchmarks, each against a peer measured in the same run: `make bench`."""
