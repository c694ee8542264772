"""Azure resources as Pulumi components, one resource family per module. Start in `context`;
`infra.program` puts them together.
"""
