"""The verbs, one file each or one for a few small verbs of one noun; `runner.cli.main.VERBS`
says which module has which verb.
"""
