"""The agent: proposes candidates, submits them to the referee, tracks the budget and assembles the deliverable.

It never imports, executes or unpickles its inputs: task files, candidates and model replies are text that only the
evaluator's sandbox runs.
"""
