"""Scripts in the style of other systems, and small modules that replace their frameworks.

`scripts/` has no code for runner; `frameworks/` prints and writes files as the frameworks do.
`projects.py` puts both into a folder, with some pictures of MNIST.
"""
