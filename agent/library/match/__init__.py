"""Recognizes a known operation in a user's module by what it computes, not by how it is written or what it is called.

The sandbox traces the module (`trace_program`), `graph` validates what came back, `canonical` turns it into one normal form
(`terms`), and `unify` compares that with the formulas of the library.
"""
