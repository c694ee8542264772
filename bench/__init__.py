"""What we measure, each against a peer in the same run: `make bench`."""
