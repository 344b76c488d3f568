"""The search for a faster kernel after the first attempts: which model to ask, for what change, with which context.

Its parts are pure functions over stored verdicts; `search` sequences them. All random draws use a seed that is stored with
the step, which makes a job replayable.
"""
