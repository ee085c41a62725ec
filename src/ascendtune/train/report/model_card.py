"""The model card of a run: base, data, settings, curve, evaluation and versions, from the run directory alone.

Only the settings listed here are included: no paths, no environment, no values of other recipe keys.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from ascendtune.core.attempt_time import seconds_of_attempts
from ascendtune.core.document import read_document
from ascendtune.core.foreign_json import is_number, value_at
from ascendtune.core.mask import without_secrets
from ascendtune.core.rundir import RunDir
from ascendtune.core.units import format_count, format_duration
from ascendtune.hub.download import split_hub
from ascendtune.hub.model_directories import is_reward_model
from ascendtune.hub.upload_files import CARD, PICTURE, is_adapter
from ascendtune.train.report.summary import SHOWN_EXTRAS

_SETTINGS = (
    "method.stage", "method.tuner", "optim.optimizer", "optim.learning_rate", "optim.scheduler", "optim.warmup_ratio",
    "optim.weight_decay", "optim.max_grad_norm", "optim.epochs", "optim.max_steps", "data.max_length", "data.packing",
    "data.loss_on", "precision", "seed",
)  # fmt: skip
_OF_TUNER = {
    "lora": ("method.lora.rank", "method.lora.alpha", "method.lora.dropout", "method.lora.target", "method.lora.init"),
    "oft": tuple(f"method.oft.{key}" for key in ("block_size", "rank", "module_dropout", "coft", "target")),
}
_OF_STAGE = {"sft": ("method.sft.loss",), "preference": ("method.preference.loss", "method.preference.beta")}
_STAGES = {
    "pretrain": "continued pretraining",
    "sft": "supervised fine-tuning",
    "reward": "training of a reward model",
    "preference": "preference learning",
}
_PAGES = {"hf": "https://huggingface.co", "modelscope": "https://www.modelscope.cn/models"}
_HUB_ID = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}")
_MOST_EVALUATIONS = 8
_LONGEST_VALUE = 200


def base_on_hub(run: RunDir) -> str | None:
    """OWNER/NAME of the base model; None if it was a directory, or may have been one.

    Raises:
        MachineError: a record of the run is damaged.
    """
    path = str(_recipe_value(_recipe(run), "model.path") or "")
    hub, colon, name = path.partition(":")
    if colon and hub in ("hf", "modelscope"):
        return name if _HUB_ID.fullmatch(name) else None
    # A relative directory may look like an id; only an id leads into the hub's cache.
    is_from_cache = f"models--{path.replace('/', '--')}" in Path(str(run.read().get("model_directory") or "")).parts
    return path if _HUB_ID.fullmatch(path) and is_from_cache else None


def revision_of_base(run: RunDir) -> str | None:
    """The revision in the recipe of a base model on the hub; None if it names none.

    Raises:
        MachineError: a record of the run is damaged.
    """
    revision = _recipe_value(_recipe(run), "model.revision")
    return revision if isinstance(revision, str) else None


def written_by_user(directory: Path) -> bool:
    """Whether `directory` has a model card with content, beyond PEFT's template.

    Raises:
        MachineError: it cannot be read.
    """
    from ascendtune.core.foreign_json import read_regular_file

    # A link may point to any file of this machine.
    if not (directory / CARD).is_file() or (directory / CARD).is_symlink():
        return False
    from huggingface_hub import ModelCard, ModelCardData

    text = read_regular_file(directory / CARD).decode(errors="replace")
    body = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    form = {line.strip() for line in str(ModelCard.from_template(ModelCardData()).text).splitlines()}
    entries = [line for line in map(str.strip, body.splitlines()) if line and line not in form]
    return any(line != "### Framework versions" and not re.fullmatch(r"- PEFT [\w.+-]+", line) for line in entries)


def model_card(
    run: RunDir,
    repository: str,
    base: str | None,
    *,
    with_picture: bool,
    weights: Path | None = None,
    step: int | None = None,
) -> str:
    """The model card as Markdown, with the hub's metadata.

    Args:
        repository: HUB:OWNER/NAME of the model, with `hf` or `modelscope` as HUB.
        base: id of the base model on this hub, if it has one.
        weights: directory of the exported weights of a checkpoint; the default is the run's final weights.
        step: step of that checkpoint; losses of later steps are left out. The final weights, too, may be of an earlier
            step than the last one: that of the best evaluation, or the last before the run was continued.

    Raises:
        RecipeError: the model's config is damaged.
        MachineError: a record of the run is damaged.
    """
    recipe, record = _recipe(run), run.read()
    exported = record.get("exported_step")
    if step is None and isinstance(exported, int) and exported != run.last_step():
        step = exported
    versions = [[_code(name), _code(version)] for name, version in (record.get("versions") or {}).items()]
    lines = (
        *_head(run, weights or run.model, recipe, repository, base),
        *("## Data", "", *_data(run)),
        *("## Training", "", *_table(("setting", "value"), _settings(recipe, record)), ""),
        *_training_course(_with_loss(run.read_metrics(), step), step),
        *((f"![Loss, learning rate, gradient norm and throughput of the run]({PICTURE})", "") if with_picture else ()),
        *_evaluation(_with_loss(run.comparable_evaluations(), step)),
        *("## Versions", "", *_table(("package", "version"), versions)),
    )
    return "\n".join(lines).rstrip() + "\n"


def _with_loss(records: Iterable[dict[str, Any]], step: int | None) -> list[dict[str, Any]]:
    """The records with a loss, up to `step`; None: of all steps."""
    with_loss = [each for each in records if is_number(each.get("loss"))]
    return [each for each in with_loss if step is None or (is_number(each.get("step")) and each["step"] <= step)]


def _training_course(records: list[dict[str, Any]], step: int | None) -> Iterator[str]:
    if step is not None:
        yield from (f"These are the weights of step {step}.", "")
    if records:
        first, last = (f"{each['loss']:.4g} at step {_shown(each.get('step'))}" for each in (records[0], records[-1]))
        yield from (f"The loss went from {first} to {last}.", "")


def _evaluation(records: list[dict[str, Any]]) -> Iterator[str]:
    if records:
        extras = [name for name in SHOWN_EXTRAS if any(is_number(each.get(name)) for each in records)]
        rows = [[_shown(each.get(name)) for name in ("step", "loss", *extras)] for each in _selected(records)]
        yield from ("## Evaluation", "", "On rows that were not trained on.", "")
        yield from (*_table(("step", "loss", *extras), rows), "")


def _head(run: RunDir, weights: Path, recipe: Mapping[str, Any], repository: str, base: str | None) -> Iterator[str]:
    adapter, scores = is_adapter(weights), is_reward_model(weights)
    stage, tuner = str(_recipe_value(recipe, "method.stage")), str(_recipe_value(recipe, "method.tuner"))
    hub, name = split_hub(repository)
    data = {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-classification" if scores else "text-generation",
        **({"base_model": base, "base_model_relation": "adapter" if adapter else "finetune"} if base else {}),
        **({"datasets": names} if (names := sorted(set(_hub_datasets(run, hub)))) else {}),
        "tags": ["ascendtune", *(each for each in (stage, tuner) if re.fullmatch(r"[a-z]{1,20}", each))],
    }
    origin = f"[{base}]({_PAGES[str(hub)]}/{base})" if base else _code(_name(_recipe_value(recipe, "model.path")))
    kind = "An adapter of" if adapter else "A model made from"
    yield from ("---", yaml.safe_dump(data, sort_keys=False, allow_unicode=True).rstrip(), "---", "")
    yield from (f"# {name.rpartition('/')[2]}", "")
    yield f"{kind} {origin} by {_STAGES.get(stage, 'training')} with `ascendtune`."
    yield from ("Its licence is that of the base model.", "")
    if adapter and not scores:
        # PEFT itself downloads from Hugging Face only.
        is_other = hub == "modelscope"
        path = f'snapshot_download("{name}")' if is_other else f'"{name}"'
        yield from ("```python", *(["from modelscope import snapshot_download"] if is_other else []),
                    "from peft import AutoPeftModelForCausalLM", "",
                    f"model = AutoPeftModelForCausalLM.from_pretrained({path})", "```", "")  # fmt: skip
    elif not scores:
        yield from ("```sh", f"ascendtune chat {repository}", "```", "")


def _data(run: RunDir) -> Iterator[str]:
    for part, report in (run.read_data_report() or {}).items():
        if not isinstance(report, dict):
            continue
        rows = [
            [_code(_name(each.get("path"))), _code(each.get("format"))]
            + [_shown(each.get(name)) for name in ("rows_trained", "tokens")]
            for each in report.get("datasets") or []
            if isinstance(each, dict)
        ]
        counts = f"{_shown(report.get('rows_kept'))} rows, {_shown(report.get('tokens'))} tokens"
        labelled = _shown(report.get("labelled_tokens"))
        yield from (
            f"Evaluation: {counts}." if part == "eval" else f"Training: {counts}, {labelled} of them labelled.",
            "",
        )
        if rows:
            yield from (*_table(("data set", "format", "rows", "tokens"), rows), "")


def _settings(recipe: Mapping[str, Any], record: Mapping[str, Any]) -> Iterator[list[str]]:
    keys = [*_SETTINGS, *_OF_STAGE.get(str(_recipe_value(recipe, "method.stage")), ())]
    keys += _OF_TUNER.get(str(_recipe_value(recipe, "method.tuner")), ())
    for key in keys:
        if (value := _recipe_value(recipe, key)) is not None:
            yield [f"`{key}`", _code(value if isinstance(value, str) else json.dumps(value))]
    resolved = record.get("resolved") or {}
    for name, key in (("rows of a step", "global_batch"), ("steps", "total_steps")):
        yield [name, _shown(resolved.get(key))]
    for name, key in (("parameters", "parameters"), ("of which trained", "trainable")):
        if is_number(resolved.get(key)):
            yield [name, format_count(resolved[key])]
    device = resolved.get("device")
    if isinstance(device, dict):
        yield ["devices", f"{_shown(device.get('world_size'))} × {_code(device.get('name'))}"]
    if (took := seconds_of_attempts(record.get("attempts") or [])) is not None:
        yield ["time", format_duration(took)]


def _hub_datasets(run: RunDir, hub: str | None) -> Iterator[str]:
    for each in _recipe_value(_recipe(run), "data.train") or []:
        named, name = split_hub(str(each.get("path") if isinstance(each, dict) else ""))
        if named is not None and named == hub and _HUB_ID.fullmatch(name):
            yield name


def _selected(evaluations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most eight evaluations, evenly distributed, including the first, the best and the last."""
    best = min(range(len(evaluations)), key=lambda number: evaluations[number]["loss"])
    every = max(1, math.ceil(len(evaluations) / (_MOST_EVALUATIONS - 2)))
    positions = {*range(0, len(evaluations), every), best, len(evaluations) - 1}
    return [evaluations[number] for number in sorted(positions)]


def _recipe(run: RunDir) -> Mapping[str, Any]:
    return read_document(run.recipe).values if run.recipe.is_file() else {}


def _recipe_value(recipe: Mapping[str, Any], key: str) -> Any:
    return value_at(recipe, *key.split("."))


def _name(path: Any) -> str:
    """The hub id, or the last part of a path."""
    text = str(path or "unknown")
    hub, _, name = text.partition(":")
    return text if hub in ("hf", "modelscope") and _HUB_ID.fullmatch(name) else text.rstrip("/").rpartition("/")[2]


def _code(value: Any) -> str:
    """A value of a record as inline code: it cannot contain markup or a secret."""
    text = re.sub(r"[^\S ]|[`|\x00-\x1f\x7f\ud800-\udfff]", " ", without_secrets(str(value)))
    text = text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
    return f"`{text.strip() or '-'}`"


def _shown(value: Any) -> str:
    if not is_number(value):
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _table(header: tuple[str, ...], rows: Any) -> list[str]:
    return [f"| {' | '.join(each)} |" for each in (header, ("---",) * len(header), *rows)]
