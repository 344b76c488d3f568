"""The secret files that scripts/compose_secrets.py writes are those that docker-compose.yml mounts and settings read."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from scripts.compose_secrets import write_secrets
from services import settings as settings_module
from services.settings import Settings
from tests.test_compose import compose


def test_secret_files_are_the_ones_that_compose_mounts(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    write_secrets(folder, "sk-one")
    mounted = {entry["file"].rsplit("/", 1)[1] for entry in compose()["secrets"].values()}
    assert {path.name for path in folder.iterdir()} == mounted == set(compose()["secrets"])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    password = (folder / "db_password").read_text()
    assert len(password) == 48
    assert f":{password}@db:5432/" in (folder / "kernelwright_database_url").read_text()

    write_secrets(folder, "sk-two")
    assert (folder / "db_password").read_text() == password, "a running database would be locked out"


def test_settings_read_the_secret_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "BROKER_URL", "LLM_API_KEY"):
        monkeypatch.delenv(f"KERNELWRIGHT_{name}", raising=False)
    write_secrets(tmp_path, "sk-one")
    settings = Settings(_secrets_dir=str(tmp_path))
    assert settings.database == (tmp_path / "kernelwright_database_url").read_text()
    assert settings.broker_url == (tmp_path / "kernelwright_broker_url").read_text()
    assert settings.llm_api_key is not None
    assert settings.llm_api_key.get_secret_value() == "sk-one"
    assert not settings.embedded


def test_settings_look_where_compose_mounts_secrets() -> None:
    folder = settings_module._SECRETS
    assert folder == Path("/run/secrets")
    assert Settings.model_config.get("secrets_dir") == (folder if folder.is_dir() else None)


def test_an_empty_secret_file_means_unset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNELWRIGHT_LLM_API_KEY", raising=False)
    write_secrets(tmp_path, "")
    assert Settings(_secrets_dir=str(tmp_path)).llm_api_key is None


def test_an_empty_variable_means_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    # compose passes KERNELWRIGHT_LLM_BASE_URL= as it stands in .env.example
    monkeypatch.setenv("KERNELWRIGHT_LLM_BASE_URL", "")
    assert Settings().llm_base_url is None
