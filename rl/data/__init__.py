"""Builds verified rows for training: `python -m rl.data build --help`.

Proposals come from generated modules (`modules`) lowered by the compiler (`lowering`), from the kernel library (`proposals`) and from
candidates that a service accepted (`accepted`). The referee judges each of them (`build`). Only accepted ones enter a file of rows
(`rl.rows`); a file beside it records the provenance of each row.
"""
