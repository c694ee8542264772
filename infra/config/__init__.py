"""What a person may write in `Pulumi.<stack>.yaml`, and the names that follow from it. Start in
`stack`.
"""
