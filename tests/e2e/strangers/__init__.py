"""Scripts with the habits of other systems, and small modules in place of their frameworks.

`scripts/` knows nothing of us and little of its framework; `frameworks/` prints and writes as the
frameworks do. `projects.py` puts both into a folder, with some pictures of MNIST.
"""
