"""The only home of the Azure SDKs."""
