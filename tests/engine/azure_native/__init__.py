"""A stand-in for the azure-native provider plugin, with its protocol and types, without Azure."""
