"""Selects the accepted candidates to deliver and the calls each one runs, from validation verdicts alone."""

from __future__ import annotations

from agent.portfolio.building import Gain, Portfolio, build_portfolio
from agent.portfolio.entries import Entry, choose_winner, rank, timed_rows

__all__ = ["Entry", "Gain", "Portfolio", "build_portfolio", "choose_winner", "rank", "timed_rows"]
