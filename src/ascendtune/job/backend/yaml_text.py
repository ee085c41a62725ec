"""YAML that people read and edit: scripts as blocks, nothing said by reference."""

from __future__ import annotations

from typing import Any

import yaml


def to_yaml(*documents: Any) -> str:
    """The documents, one after the other, keys in the order given."""
    return yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=200)


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        # Two equal pods would become one and a reference to it, which is hard to edit.
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Plain.add_representer(str, _text)
