"""The agent: proposes candidates, has them judged, spends a budget and assembles the deliverable.

It never imports, executes or unpickles what it is given: task files, candidates and model replies are text that only
the evaluator's sandbox runs.
"""
