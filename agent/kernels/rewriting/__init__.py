"""Rewrites a captured graph: operations that the library computes become calls of it, which the compiler leaves as they are.

It runs in the sandbox beside the capture program, sent as one text (`agent.kernels.writing.rewriting_text`), so it imports
nothing else of this project. The graph comes from `make_fx(pre_dispatch=True)`. Products need no rewriting: in the compiler's
code they are calls already.
"""
