"""Sign in to a target and find out what it is. Start in `credentials`."""
