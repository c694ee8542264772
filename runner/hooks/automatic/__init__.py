"""Checkpoints for scripts that save none: adapters of frameworks, called by their own functions.

The `sitecustomize` of `runner.node.script.workspace` installs `imports.py` in each Python of the
script. When the script imports a framework, `calls.py` changes a function of it. `place.py` finds
the folder of a training. Nothing here is for users. On a node, the package has another name, so
that no package of a user collides with it. Python 3.8 can run it.
"""
