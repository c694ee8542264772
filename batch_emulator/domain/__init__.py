"""What a Batch account is and how it changes: entities, errors and transitions. Start in
`model`, then `account`.
"""
