"""The state of a Batch account and its changes: entities, errors and transitions. Start in `model`,
then `account`.
"""
