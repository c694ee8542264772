"""A recipe: what to run, with which parameters and resources. `recipe` is what the program
holds, `file` is `train.yaml` and how it is loaded, `keys` are the types of its keys. Start in
`recipe`.
"""
