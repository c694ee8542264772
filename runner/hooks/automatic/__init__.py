"""Checkpoints for scripts that save none: one adapter per framework, which wraps its functions.

To support another framework, add an entry to METHODS of `imports.py`, the adapter that it names,
and a line to `_SAVED_FRAMEWORKS` of `runner.node.script.code_text`.

Start with `imports.py`: the `sitecustomize` of `runner.node.script.workspace` installs it in each
Python process of the script. When the script imports a framework, `calls.py` wraps a function of
it. `place.py` chooses the folder of a training. This package is not for users. On a node it has
another name, so that it cannot collide with a user's package. It supports Python 3.8.
"""
