"""The Pulumi program: the Azure environment that `runner` trains in."""
