"""Between JSON on the wire and the model: parse bodies, render entities, cut pages. Start in
`render`.
"""
