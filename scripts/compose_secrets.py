"""Write the secret files that docker-compose.yml mounts: random passwords, the two URLs made of them, keys of models.

    python3 scripts/compose_secrets.py [FOLDER]      # default: deploy/secrets, which git ignores

Files that exist are kept, so that a running database keeps its password. The keys are read from the environment variables
KERNELWRIGHT_LLM_API_KEY and KERNELWRIGHT_POLICY_API_KEY; without one its file is empty. Standard library only.

The folder can be entered by its owner alone. The files inside are readable by all, because Compose mounts each one
as it is and the user inside a container has another number than the owner outside.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def write_once(path: Path, text: str) -> str:
    """Write `text` unless the file exists; return what the file holds."""
    if not path.exists():
        path.write_text(text, encoding="utf-8")
        path.chmod(0o444)
        print(f"wrote {path.name}")
    return path.read_text(encoding="utf-8")


def write_secrets(folder: Path, llm_api_key: str, policy_api_key: str = "") -> None:
    """Write every secret that docker-compose.yml names into `folder`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    # hex digits: they need no escaping in a URL
    db_password = write_once(folder / "db_password", secrets.token_hex(24))
    redis_password = write_once(folder / "redis_password", secrets.token_hex(24))
    write_once(folder / "grafana_password", secrets.token_hex(24))
    write_once(folder / "metrics_key", "")  # a key for Prometheus, once made: docs/operations.md
    write_once(
        folder / "kernelwright_database_url",
        f"postgresql+psycopg://kernelwright:{db_password}@db:5432/kernelwright",
    )
    write_once(folder / "kernelwright_broker_url", f"redis://:{redis_password}@redis:6379/0")
    write_once(folder / "kernelwright_llm_api_key", llm_api_key)
    write_once(folder / "kernelwright_policy_api_key", policy_api_key)


def main() -> int:
    """Write the files and say where they are; return the exit status."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY / "deploy" / "secrets"
    keys = (os.environ.get(f"KERNELWRIGHT_{name}_API_KEY", "") for name in ("LLM", "POLICY"))
    write_secrets(folder, *keys)
    print(f"secrets are in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
