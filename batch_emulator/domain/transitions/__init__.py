"""How the account changes, one module a resource: plain functions on the account, no input or
output. Start in `tasks`.
"""
