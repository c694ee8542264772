"""How the account changes: plain functions on the one mutable object, no input or output."""
