"""How the search for a faster kernel goes on after the first attempts: whom to ask for what, and with what in view.

The parts are pure functions over stored verdicts; `search` puts them in an order. Everything random is drawn from a seed
that is stored with its step, so that a job replays.
"""
