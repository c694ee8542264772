"""Check what clients ask for before anything changes. Start in `tasks`; `properties` has the
basic checks.
"""
