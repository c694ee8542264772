"""The devices of a node: counters, nvidia-smi, and idle scripts."""
