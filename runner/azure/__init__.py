"""The only home of the Azure SDKs. Start in `auth/credentials`, which signs in."""
