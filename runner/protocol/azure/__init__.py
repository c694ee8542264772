"""Names of Azure's services that clients and agent need. Start with `clouds`."""
