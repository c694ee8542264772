"""Check what clients ask for before anything changes. Start in `body_schema`, which every body
passes; the others check what a schema cannot say.
"""
