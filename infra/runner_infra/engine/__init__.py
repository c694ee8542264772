"""Run Pulumi: through its Automation API, offline, and after an interrupted deployment. Start in
`automation`.
"""
