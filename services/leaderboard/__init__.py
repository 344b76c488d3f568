"""The global leaderboard: who is fastest at which task of the catalogue, on which type of machine.

`eligibility` alone decides what ranks, `recording` writes it down in the transaction that ends the job, `reading` shows it.
"""
