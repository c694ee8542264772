"""Checkpoints on the node: consistent snapshots, commits to blob, and the restore. Start in
`committer`.
"""
