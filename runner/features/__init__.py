"""Optional features: one package each, with its flows and verbs. The core imports none of them.

The `__init__` of a feature says what it is and needs, and declares its verbs for
`runner.cli.main`, which reads it without importing the modules of the feature.
"""
