"""Reads settings from YAML files, and overrides them by `--set key=value` from a command line.

A key is a dotted path, as in `optimizer.learning_rate=1e-4`; a value is parsed as YAML. In a list of stages a key applies to every
stage; a key that starts with a stage's name, as in `contrastive.steps=3`, applies only to that stage.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rl.errors import ConfigError

_MOST_BYTES = 1 << 16
_STAGES = ("sft", "selfsup", "contrastive")


class _Loader(yaml.SafeLoader):
    """A YAML loader that refuses duplicate keys instead of using the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = next((key for place, key in enumerate(keys) if key in keys[:place]), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(
                None, None, f"`{twice}` stands there twice", node.start_mark
            )
        return super().construct_mapping(node, deep)


def read_settings(path: Path) -> dict[str, Any]:
    """Read the names and values of a YAML file.

    Raises:
        ConfigError: the file cannot be read or is not a mapping; the message is one sentence.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{path}: larger than {_MOST_BYTES} bytes, which no config is")
        found = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ConfigError(f"{path}: must be settings, a name and a value each")
    return found


def override(documents: Mapping[str, dict[str, Any]], settings: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Copies of the stages' settings with the command line's settings applied.

    Args:
        documents: the settings of each stage's file, by location.
        settings: texts of the form `key=value`.

    Raises:
        ConfigError: a text is not `key=value`, a value is not YAML, or a key names a missing stage.
    """
    found = {where: copy.deepcopy(document) for where, document in documents.items()}
    for setting in settings:
        key, equals, text = setting.partition("=")
        names = [name.strip() for name in key.split(".")]
        if not equals or not all(names):
            raise ConfigError(f"--set {setting}: must be key=value, for example optimizer.learning_rate=1e-5")
        try:
            value = yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
        except (yaml.YAMLError, RecursionError):
            raise ConfigError(f"--set {setting}: {text!r} is no YAML") from None
        chosen = list(found.values())
        if names[0] in _STAGES:
            chosen = [one for one in chosen if one.get("stage") == names[0]]
            if not chosen or len(names) == 1:
                raise ConfigError(
                    f"--set {setting}: there is no stage {names[0]} here, or no setting of it is named"
                )
            names = names[1:]
        for document in chosen:
            _put(document, names, value, setting)
    return found


def _put(document: dict[str, Any], names: Sequence[str], value: Any, setting: str) -> None:
    *above, last = names
    for name in above:
        inside = document.setdefault(name, {})
        if not isinstance(inside, dict):
            raise ConfigError(f"--set {setting}: `{name}` is a value and has no settings")
        document = inside
    document[last] = value
