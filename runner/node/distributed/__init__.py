"""Runs over several nodes: the node group of the primary, and the connections between nodes.

Start in `node_group`.
"""
