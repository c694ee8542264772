"""The emulator's own state on disk, in SQLite: how it is written, and how it is loaded after a
crash. Start in `account_store`. Blobs and files are not stored here.
"""
