"""Names in a message of torch's load_state_dict: the difference between those in the file and in the model."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from ascendtune.check.explain.language import say

_MISSING = re.compile(r"Missing key\(s\) in state_dict: (?P<keys>(?:\"[^\"]+\",?\s*)+)")
_UNEXPECTED = re.compile(r"Unexpected key\(s\) in state_dict: (?P<keys>(?:\"[^\"]+\",?\s*)+)")
_KEY = re.compile(r'"([^"]+)"')
_MOST_KEYS = 40
_BUFFERS = ("position_ids", "inv_freq", "masked_bias", "attn.bias", "relative_position_index", "attn_mask")
"""Ends of the names of tables that older releases stored."""
_OF_BUFFERS = "they are tables that the model computes itself: load_state_dict(…, strict=False) leaves them out"
_ADAPTER = "default"
_OF_ADAPTER = "lora_"
_WRAPPERS = {
    "module": "DistributedDataParallel or DataParallel",
    "_orig_mod": "torch.compile",
    "_fsdp_wrapped_module": "FSDP",
    "_checkpoint_wrapped_module": "activation checkpointing",
    "base_model.model": "PEFT",
    "base_layer": "PEFT",
}
"""Parts of names that a wrapper of the model inserts."""


@dataclass(frozen=True)
class Names:
    """Names of tensors that the model has and the file lacks (`missing`), and the reverse (`unexpected`)."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]

    @property
    def inserted(self) -> tuple[str, bool] | None:
        """(part by which most names differ, whether the file's names have it); None if there is none."""
        counts = Counter[tuple[str, bool]]()
        for missing in self.missing:
            for unexpected in self.unexpected:
                if part := _extra(missing, unexpected):
                    counts[part, False] += 1
                if part := _extra(unexpected, missing):
                    counts[part, True] += 1
        if counts:
            return counts.most_common(1)[0][0]
        sides = ((self.unexpected, True), (self.missing, False))
        wraps = ((part, is_in_file) for part in _WRAPPERS for names, is_in_file in sides if _all_have(part, names))
        return next(wraps, None)

    @property
    def are_buffers(self) -> bool:
        """Whether the file has only additional tables that a model computes itself."""
        return not self.missing and all(name.endswith(_BUFFERS) for name in self.unexpected)

    @property
    def is_adapter(self) -> bool:
        """Whether the file is an adapter, and the model does not have one."""
        return any(_OF_ADAPTER in name for name in self.unexpected) and not any(
            _OF_ADAPTER in name for name in self.missing
        )

    def headline(self) -> str:
        inserted = self.inserted
        if self.is_adapter:
            return say("the file is an adapter ({name}), and the model has none", name=self.unexpected[0])
        if inserted is not None and inserted[1]:
            return say("the file's names have “{part}”, which the model's lack", part=inserted[0])
        if inserted is not None:
            return say("the file's names lack “{part}”, which the model's have", part=inserted[0])
        if not self.unexpected:
            return say("the file lacks {name}, which the model has", name=self.missing[0])
        if not self.missing:
            return say("the file has {name}, which the model lacks", name=self.unexpected[0])
        return say(
            "the file lacks {missing} and has {unexpected}", missing=self.missing[0], unexpected=self.unexpected[0]
        )

    def remedy(self) -> str | None:
        """First remedy, if the names differ by one part."""
        if self.are_buffers:
            return say(_OF_BUFFERS)
        if self.inserted is None and not self.is_adapter:
            return None
        part, is_in_file = self.inserted or (_ADAPTER, False)
        if part == _ADAPTER or self.is_adapter:
            return say(
                "it is an adapter: load it with PeftModel.from_pretrained(model, DIRECTORY) or "
                "peft.set_peft_model_state_dict, which know its names, in place of load_state_dict"
            )
        wrapper = _WRAPPERS.get(part)
        if wrapper is None:
            template = "load it into the class that wrote it, or rename: {code}"
        elif is_in_file:
            template = "it was saved from a model in {wrapper}: unwrap before saving, or rename: {code}"
        else:
            template = "load it before the model is put into {wrapper}, or rename: {code}"
        return say(template, wrapper=wrapper or "", code=_renaming(part, is_in_file, self.missing, self.unexpected))


def names_in(text: str) -> Names | None:
    """Names in a message of torch's load_state_dict."""
    missing, unexpected = _keys(_MISSING.search(text)), _keys(_UNEXPECTED.search(text))
    return Names(missing, unexpected) if missing or unexpected else None


def _keys(match: re.Match[str] | None) -> tuple[str, ...]:
    return tuple(_KEY.findall(match["keys"])[:_MOST_KEYS]) if match else ()


def _all_have(part: str, names: tuple[str, ...]) -> bool:
    return bool(names) and all(f".{part}." in f".{name}" for name in names)


def _extra(longer: str, shorter: str) -> str:
    """Consecutive parts of `longer` that `shorter` lacks; empty if the names differ otherwise."""
    more, fewer = longer.split("."), shorter.split(".")
    count = len(more) - len(fewer)
    if count < 1:
        return ""
    start = 0
    while start < len(fewer) and more[start] == fewer[start]:
        start += 1
    part = ".".join(more[start : start + count]) if more[start + count :] == fewer[start:] else ""
    return "" if part.startswith(_OF_ADAPTER) else part


def _renaming(part: str, is_in_file: bool, missing: tuple[str, ...], unexpected: tuple[str, ...]) -> str:
    """Python expression that renames the file's tensors to the model's names."""
    is_prefix = all(name.startswith(f"{part}.") for name in (unexpected if is_in_file else missing))
    if is_in_file:
        new = f"k.removeprefix('{part}.')" if is_prefix else f"k.replace('.{part}.', '.')"
        return f"{{{new}: v for k, v in state_dict.items()}}"
    if is_prefix:
        return f"{{'{part}.' + k: v for k, v in state_dict.items()}}"
    longer = next((name for name in missing if f".{part}." in name), missing[0])
    return f"{longer.replace(f'.{part}', '', 1)} → {longer}"
