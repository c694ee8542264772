"""Checkpoints on the node: consistent snapshots, commits to blob, and restoring.

Start in `committer`.
"""
