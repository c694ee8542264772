"""What Batch offers and what it costs: VM sizes, operating systems, prices. Start in `machines`."""
