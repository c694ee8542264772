"""A stand-in for Pulumi's language host for Python; what runs a program is Pulumi's own script."""
