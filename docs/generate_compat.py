"""Writes docs/compat.md: `python docs/generate_compat.py` what the code alone decides, `make compat` all of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from ascendtune.recipe.llamafactory.data import NAMES, SAME
from ascendtune.recipe.llamafactory.ignored_keys import IGNORED_KEYS
from ascendtune.recipe.llamafactory.keys import ALIASES, TRANSLATED
from ascendtune.recipe.llamafactory.unsupported import REFUSED

TARGET = Path(__file__).with_name("compat.md")

_HEAD = """# LLaMA-Factory recipes

`ascendtune train llamafactory.yaml` runs a LLaMA-Factory recipe (v0, YAML or JSON, with its `dataset_info.json`)
unchanged; a top-level `model_name_or_path` marks it. Keys on the command line are native: `optim.max_steps=30`.
`ascendtune recipe convert llamafactory.yaml` prints the same recipe in native form. Every key of LLaMA-Factory is
translated, reported as ignored, or refused by name with an alternative; an unknown key is an error.

Its environment variables `FORCE_TORCHRUN`, `NNODES`, `NODE_RANK`, `MASTER_ADDR`, `MASTER_PORT` and `USE_MODELSCOPE_HUB`
work; the last needs `pip install 'ascendtune[modelscope]'`, and serves recipes of ours as well.

Written by `make compat`, which takes the examples of LLaMA-Factory's own source distribution; do not edit.
"""

_DIFFERENCES = (
    (
        "`pref_loss: hinge` and `ipo` train sigmoid in 0.9.4 and 0.9.5, with the versions of TRL that they allow",
        "the loss that is named",
    ),
    (
        "a row longer than `cutoff_len` is cut in question and answer, in proportion, and not counted",
        "its end is cut, and counted in the data report; EOS is trained on only where the answer really ended",
    ),
    (
        "`overwrite_output_dir: true` starts at step 0 again without a word",
        "an unfinished run is resumed and says so; a finished one is kept, and the new one gets a number",
    ),
    ("`formatting: openai` adds the system message `detailed thinking off`", "nothing is added"),
    ("`packing` without `neat_packing` lets the rows of a sequence see each other", "they never do"),
    (
        "rows that cannot be trained on are dropped with a line in the log",
        "dropped, and counted by reason with file and line of examples in the data report",
    ),
    (
        "an empty answer is trained on as an end; rows of turns must alternate strictly, and their speakers be "
        "called as the tags say",
        "an empty answer is a row that cannot be trained on; tool answers may follow each other, and without `tags` "
        "speakers may be called `user` and `assistant` too",
    ),
    ("tokens are prepared while other processes wait in a collective", "before any process starts"),
    (
        "with an adapter to go on from and no `ref_model`, the reference of DPO is the model without any adapter",
        "the model with that adapter, as it is before training",
    ),
    (
        "types and values of most keys are checked by nobody, or after the libraries are loaded",
        "unknown keys, types, values and contradictions are said at once, with file and line, before anything starts",
    ),
    (
        "the newline after the mark that ends an answer is trained on (`chatml`, `qwen`, `qwen3`, `yi`, `intern2`, "
        "`phi`, …): one more token an answer, which is never asked for, since generation stops at the mark, and which "
        "is easy",
        "the mark is the last token trained on; the loss is a mean over fewer easy tokens, so its value is a little "
        "higher",
    ),
    (
        "`template` of a model that thinks, with `stage: dpo`, `rm` or `kto`: a `<think>` of earlier answers is taken "
        "out only where line breaks stand exactly as in the template",
        "in any case",
    ),
    (
        "a template without such a mark (glm4) puts the label EOS on the first token of the next question",
        "EOS is trained on at the end of the conversation",
    ),
    ("`num_samples` draws rows at random", "the first so many are taken"),
    (
        "rows of new tokens begin as the mean of the others with noise, and the table grows to a multiple of 64; those "
        "of `add_tokens` are ordinary tokens",
        "they begin as the mean, the table grows by as many as are new, and all of them are special: a decoder that "
        "skips special tokens leaves them out",
    ),
    (
        "`save_only_model` leaves checkpoints that cannot be resumed",
        "a checkpoint always resumes; final weights are in `model/`",
    ),
)


def page(files: Iterable[tuple[str, str, str]], templates: Iterable[tuple[str, str, str]], release: str) -> str:
    """The whole page.

    Args:
        files: (path, what became of it, keys that were said to be inert).
        templates: (theirs, ours, how they compare).
        release: of LLaMA-Factory.
    """
    rows = [f"| `{path}` | {_cell(what)} | {_cell(inert)} |" for path, what, inert in files]
    listed = [
        f"## Every example of {release}",
        "",
        "*runs*: two steps on CPU, the model swapped for a tiny one with random weights, the data cut to a few rows.",
        "",
        "| file | what becomes of it | accepted without effect |",
        "|---|---|---|",
        *rows,
        "",
    ]
    compared = [f"| `{theirs}` | `{ours}` | {how} |" for theirs, ours, how in templates]
    return "\n".join([_HEAD, *listed, templates_section(compared), differences_section(), keys_section()])


def templates_section(compared: list[str]) -> str:
    """Templates, with the rows of the table that says how they compare."""
    others = ", ".join(f"`{name}`" for name in NAMES if name not in SAME)
    head = ["## Templates", "", "| `template` | `data.template` | compared |", "|---|---|---|", *compared, ""]
    rest = [
        "Compared are text and labels of plain conversations, white space at their very end apart, and of preferences, "
        "where only the last answer is trained on. How tools are written is not compared.",
        "",
        f"Without `template` the model's own chat template is used. These are refused by name: {others}.",
        "",
    ]
    return "\n".join([*head, *rest])


def differences_section() -> str:
    """Where ours does something else on purpose."""
    rows = [f"| {theirs} | {ours} |" for theirs, ours in _DIFFERENCES]
    rest = (
        "The order of rows, drawn adapters and kernels are others: losses follow theirs closely, never bit for bit.\n"
    )
    return "\n".join(
        ["## Where ours differs on purpose", "", "| LLaMA-Factory | ascendtune |", "|---|---|", *rows, "", rest]
    )


def keys_section() -> str:
    """Every key, and what becomes of it."""
    rows = [(key, str(found.default), f"→ {found.becomes}") for key, found in TRANSLATED.items()]
    rows += [(old, "", f"→ as `{new}`") for old, new in ALIASES.items()]
    rows += [(key, str(default), f"no effect: {why}") for key, (default, why) in IGNORED_KEYS.items()]
    rows += [(key, str(found.default), f"refused: {found.what}; {found.remedy}") for key, found in REFUSED.items()]
    shown = [
        f"| `{key}` | {f'`{default}`' if default else ''} | {_cell(what)} |" for key, default, what in sorted(rows)
    ]
    head = ["## Every key", "", "What has no effect, and what is refused, is accepted in silence with its default.", ""]
    return "\n".join([*head, "| key | their default | what becomes of it |", "|---|---|---|", *shown, ""])


def updated(text: str) -> str:
    """`text` with the parts that the code alone decides written anew."""
    compared = re.findall(r"^\| `[\w.-]+` \| `\w+` \| (?:same|not).*$", text, re.MULTILINE)
    measured = text[text.index("## Every example") : text.index("## Templates")].rstrip() + "\n"
    return "\n".join([_HEAD, measured, templates_section(compared), differences_section(), keys_section()])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    TARGET.write_text(updated(TARGET.read_text(encoding="utf-8")), encoding="utf-8")
