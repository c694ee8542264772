"""A stand-in for the azure-native provider plugin: real protocol, the SDK's types, no Azure."""
