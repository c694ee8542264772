"""Which packages a project asks for, and why some cannot be installed.

`failures` finds what to correct in the message of a node.
"""
