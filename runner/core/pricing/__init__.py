"""VM sizes, operating systems and prices of Batch nodes. Start in `machines`."""
