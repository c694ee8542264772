"""The script on the node: its folders, process, output streams, metrics and outputs.

Start in `command`.
"""
