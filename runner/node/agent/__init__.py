"""The life of a task: settings, the stages of an attempt, and the outcome of the run. Start in
`main`.
"""
