"""Decide the next actions from the state of the account. Start in `scheduler`."""
