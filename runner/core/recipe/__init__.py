"""A recipe: what to run, with which parameters and resources. `recipe` has the class that the
program uses, `file` loads `train.yaml`, `submit_file` the file of `runner submit`, and `keys` has
the types of their keys. Start in `recipe`.
"""
