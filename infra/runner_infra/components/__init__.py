"""Azure resources as Pulumi components, one resource family per module. Start in `context`;
`runner_infra.program` puts them together.
"""
