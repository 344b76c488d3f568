"""Rows to train on, built and verified: `python -m rl.data build --help`.

Modules are made from a seed (`modules`) and lowered by the compiler (`lowering`); the kernel library's own kernels are
taken (`library`); a service gives what it accepted (`accepted`). The referee judges each of
them (`build`); nothing else gets into a file of rows (`rl.rows`), and where each came from stands in a file beside it.
"""
