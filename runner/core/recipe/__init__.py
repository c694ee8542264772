"""A recipe: what to run, with which parameters and resources. `recipe` has the class that the
program uses, `file` loads `train.yaml`, and `keys` has the types of its keys. Start in `recipe`.
"""
