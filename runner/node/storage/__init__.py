"""Azure Storage over plain HTTP: blobs (`blobs`), requests (`http`), credentials (`auth`), and
deadlines and the retry budget (`limits`). Start in `blobs`.
"""
