"""The formula language of automatic scaling."""
