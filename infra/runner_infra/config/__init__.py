"""The keys of `Pulumi.<stack>.yaml`, and the names that follow from them. Start in
`stack`.
"""
