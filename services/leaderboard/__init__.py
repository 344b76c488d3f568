"""The global leaderboard: the fastest modules for each catalogue task and type of machine.

`eligibility` decides which jobs rank, `recording` writes entries in the transaction that ends the job, `reading` queries them.
"""
