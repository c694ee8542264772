"""Azure resources as Pulumi components, one resource family a module. Start in `context`;
`infra.program` puts them together.
"""
