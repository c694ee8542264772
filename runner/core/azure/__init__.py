"""What Azure answers, without its SDKs: shared by the client of Resource Manager and the engine."""
