"""What the node adds to a training: around the script, beside it, and on several nodes."""
