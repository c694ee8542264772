"""What should happen next: pure decisions over the account. Start in `scheduler`."""
