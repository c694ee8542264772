"""Check the bodies of requests before anything changes. Start in `body_schema`, which checks every
body; the other modules check what a schema cannot express.
"""
