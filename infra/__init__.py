"""The Pulumi program of the Azure environment. Start reading in `program`."""
