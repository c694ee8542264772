"""What should happen next, as pure decisions over the account."""
