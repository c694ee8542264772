"""Azure Storage over plain HTTP: blobs (`blobs`), requests (`http`), credentials (`auth`), and
retries and deadlines (`retries`). Start in `blobs`.
"""
