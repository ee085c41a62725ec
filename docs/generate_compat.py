"""Writes docs/compat.md: `python docs/generate_compat.py` what the code alone decides, `make compat` all of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from ascendtune.recipe.llamafactory import v1
from ascendtune.recipe.llamafactory.data import NAMES, SAME
from ascendtune.recipe.llamafactory.llamafactory_recipe import V0, Dialect

TARGET = Path(__file__).with_name("compat.md")

_HEAD = """# LLaMA-Factory recipes

`ascendtune train llamafactory.yaml` runs a LLaMA-Factory recipe, YAML or JSON, with its `dataset_info.json`. A
recipe of v0 has `model_name_or_path`, one of v1 (`USE_V1=1`) keys such as `train_dataset` and `micro_batch_size`.
On the command line a recipe takes LLaMA-Factory's keys and native ones: `num_train_epochs=1`, `optim.max_steps=30`.
`ascendtune recipe convert llamafactory.yaml` prints the same recipe in native form. Each LLaMA-Factory key is
translated, or accepted and reported as having no effect, or refused by name with an alternative; an unknown key is
an error.

LLaMA-Factory's environment variables `FORCE_TORCHRUN`, `NNODES`, `NODE_RANK`, `MASTER_ADDR`, `MASTER_PORT` and
`USE_MODELSCOPE_HUB` work; the last needs `pip install 'ascendtune[modelscope]'`, and applies to native recipes too.

`make compat` writes this page from the examples of LLaMA-Factory's source distribution; do not edit it.
"""

_DIFFERENCES = (
    (
        "`pref_loss: hinge` and `ipo` train sigmoid in 0.9.4 and 0.9.5, with the versions of TRL that they allow",
        "the loss that is named",
    ),
    (
        "a row longer than `cutoff_len` is cut in question and answer, in proportion, and not counted",
        "its end is cut, and counted in the data report, as are rows of which no answer remains, which are left out; "
        "EOS is trained on only where the answer really ended",
    ),
    (
        "`overwrite_output_dir: true` starts at step 0 again without a word",
        "an unfinished run is resumed and says so; a finished one is kept, and the new one gets a number",
    ),
    ("`formatting: openai` adds the system message `detailed thinking off`", "nothing is added"),
    ("`packing` without `neat_packing` lets the rows of a sequence see each other", "they never do"),
    (
        "`neat_packing` without flash attention gives layers with a sliding window (Mistral, Gemma 2 and 3, gpt-oss) "
        "the whole row to see",
        "each layer keeps its window",
    ),
    (
        "rows that cannot be trained on are dropped with a line in the log",
        "dropped, and counted by reason with file and line of examples in the data report",
    ),
    (
        "an empty answer is trained on as an end, an empty question and a pair of equal answers as they are; rows of "
        "turns must alternate strictly, and their speakers be called as the tags say",
        "these are rows that cannot be trained on; turns of one speaker may follow each other, and without `tags` "
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
        "that token itself is trained on if generation_config.json names it (`<|user|>`, `<|observation|>`), and EOS "
        "at the end of the conversation",
    ),
    ("`num_samples` draws rows at random", "the first so many are taken"),
    (
        "rows of new tokens begin as the mean of the others with noise, and the table grows to a multiple of 64; those "
        "of `add_tokens` are ordinary tokens",
        "they begin as the mean, the table grows by as many as are new, and all of them are special: a decoder that "
        "skips special tokens leaves them out",
    ),
    (
        "`loraplus_lr_ratio` also speeds up norms, biases and DoRA's magnitudes, which then decay like matrices; "
        "adapters of embeddings learn at `loraplus_lr_embedding`, 1e-6 by default, whatever `learning_rate` is",
        "B matrices alone learn faster, those of embeddings too; norms, biases and magnitudes never decay",
    ),
    (
        "`lora_target: all` also adapts routers, gates of shared experts and heads that are linear layers (Granite's, "
        "Qwen3-Next's, GPT-NeoX's)",
        "neither routers nor gates of experts nor heads",
    ),
    (
        "`freeze_extra_modules: norm` trains every weight whose name contains `norm`, in all layers",
        "the module of that name",
    ),
    (
        "with `use_asft_loss` the gradient grows with `gradient_accumulation_steps`",
        "a mean over the tokens of a step, whatever the number of micro-batches",
    ),
    (
        "with `train_on_prompt`, and for `stage: pt`, the loss is divided by all tokens of a row, also by the first, "
        "which nothing predicts",
        "by the tokens that are predicted",
    ),
    ("`stage: kto` estimates the divergence from the reference for each micro-batch", "once a step, from all its rows"),
    ("`eval_loss` is a mean over batches, each of which is a mean over its tokens", "a mean over all labelled tokens"),
    (
        "`stage: rm` drops a tenth of what its value head reads; `dpo` and `kto` switch dropout off in the model, too",
        "scores are computed without dropout of their own; a model's own dropout stays",
    ),
    (
        "NEFTune's noise follows from the length of the longest row in a batch",
        "from the row's own length, unless rows are padded",
    ),
    (
        "`stage: pt` cuts the joined texts into blocks of `cutoff_len`, and drops the incomplete one at the end",
        "whole texts, or pieces of long ones, share a sequence; nothing is dropped",
    ),
    (
        "`use_muon` with `weight_decay` also shrinks biases and norms",
        "they do not decay",
    ),
    (
        "`stage: pt` writes BOS only where the tokenizer has `add_bos_token: true`, with packing in the place of each "
        "block's first token",
        "a text begins with BOS where the tokenizer itself puts one",
    ),
    (
        "`stage: pt` ends a text with the end mark of `template` where it has one (`<|im_end|>` of `qwen`)",
        "with the tokenizer's EOS",
    ),
    (
        "every template writes tools, most in a form of LLaMA-Factory's own; `qwen3` and `qwen3_nothink` put two empty "
        "lines before tools without a system message, and an empty list of tools adds an empty system message",
        "`qwen`, `qwen3` and `qwen3_nothink` write tools as the models' own templates do; with others rows with tools "
        "are left out, and a note says so",
    ),
    (
        "v1 of 0.9.5 writes `qwen3_nothink` where `template` is not set, and leaves out rows that do not fill the last "
        "batch of an epoch",
        "the model's own chat template; every row is trained on",
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
    return "\n".join(["## Where ours differs on purpose", "", "| theirs | ours |", "|---|---|", *rows, "", rest])


def keys_section() -> str:
    """Every key of v0 and of v1, and what becomes of it."""
    head = [
        "## Every key",
        "",
        "A key with no effect and a key that is refused are accepted in silence with their default.",
    ]
    return "\n".join([*head, "", *_keys_of(V0), "", "## Every key of v1", "", *_keys_of(v1.V1), ""])


def _keys_of(dialect: Dialect) -> list[str]:
    rows = [(key, str(found.default), f"→ {found.becomes}") for key, found in dialect.translated.items()]
    rows += [(old, "", f"→ as `{new}`") for old, new in dialect.aliases.items()]
    rows += [(key, str(default), f"no effect: {why}") for key, (default, why) in dialect.ignored.items()]
    rows += [(key, str(each.default), f"refused: {each.what}; {each.remedy}") for key, each in dialect.refused.items()]
    shown = [
        f"| `{key}` | {f'`{default}`' if default else ''} | {_cell(what)} |" for key, default, what in sorted(rows)
    ]
    return ["| key | its default | what becomes of it |", "|---|---|---|", *shown]


def updated(text: str) -> str:
    """`text` with the parts that the code alone decides written anew."""
    compared = re.findall(r"^\| `[\w.-]+` \| `\w+` \| (?:same|not).*$", text, re.MULTILINE)
    measured = text[text.index("## Every example") : text.index("## Templates")].rstrip() + "\n"
    return "\n".join([_HEAD, measured, templates_section(compared), differences_section(), keys_section()])


def with_examples(text: str, files: Iterable[tuple[str, str, str]]) -> str:
    """`text` with the rows of these examples replaced; the others stay."""
    for path, what, ignored in files:
        row = f"| `{path}` | {_cell(what)} | {_cell(ignored)} |"
        text = re.sub(rf"^\| `{re.escape(path)}` \|.*$", lambda _, row=row: row, text, flags=re.MULTILINE)
    return text


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    TARGET.write_text(updated(TARGET.read_text(encoding="utf-8")), encoding="utf-8")
