"""What the server keeps of runs between two pages, bounded: rows, curves and prices.

`run_table.py` has the rows of lists, `run_facts.py` what costs a document per run. Start there.
"""
