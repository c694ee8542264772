"""Compare the recorded node time with Azure's bill.

It needs a cost export of Azure, a CSV file, and no extra. Start in `bill.py`. `runner cost` has its
option `--reconcile`, and loads `verbs.py` for it.
"""
