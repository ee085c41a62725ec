"""Sentences of explain, in English or Chinese."""

from __future__ import annotations

from ascendtune.core.language import Phrases

say = Phrases(__package__)
