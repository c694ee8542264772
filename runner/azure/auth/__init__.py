"""Sign in to a target and read its description. Start in `credentials`."""
