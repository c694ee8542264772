"""Runs over several nodes: the primary's node group, the workers, and the connection between
them. Start in `node_group`.
"""
