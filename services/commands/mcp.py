"""`kernelwright mcp`: an MCP server on standard input and output, for coding agents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.client import DEFAULT_URL
from services.commands.remote import Url
from services.commands.terminal import KeyFile, KeyNotSent, MinimumTier, PlainHttp, give_up, key_from


def mcp(
    root: Annotated[
        Path, typer.Option(help="The folder whose files may be read; nothing outside of it is.")
    ] = Path(),
    device: Annotated[str, typer.Option(help="cpu or cuda: where this machine judges.")] = "cpu",
    minimum_tier: MinimumTier = "landlock",
    url: Url = DEFAULT_URL,
    key_file: KeyFile = None,
    plain_http: PlainHttp = False,
) -> None:
    """Offer lint, profile, evaluate, submit, job status and a job's leaderboard to a coding agent, over MCP on stdio.

    An agent starts it itself. It reads files below --root alone, judges in the referee's sandbox, and asks the service at
    --url with the key in KERNELWRIGHT_API_KEY or --key-file. Needs the extra `mcp`.

    Example, as an agent's configuration has it: {"command": "kernelwright", "args": ["mcp", "--root", "."]}
    """
    try:
        from services.mcp.server import Kernelwright, make_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        give_up(
            "the extra `mcp` is not installed: pip install '.[service,agent,mcp]' in a checkout of Kernelwright"
        )
    from services.mcp.files import Folder
    from services.mcp.local import Local
    from services.mcp.remote import Remote

    try:
        folder = Folder(root, hidden=key_file)
        key = key_from(key_file)
        remote = Remote(url, key, allow_insecure_key=plain_http)
    except OSError as error:
        give_up(f"cannot read {root}: {error}")
    except KeyNotSent as error:
        give_up(str(error))
    secrets = () if key is None else (key,)
    make_server(Kernelwright(folder, Local(device, minimum_tier), remote, secrets)).run("stdio")
