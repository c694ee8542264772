"""The state on disk, in SQLite: what is written, and what becomes of it after a crash. Start in
`account_store`.
"""
