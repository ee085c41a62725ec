"""The recipe: what to train and how, as one typed, frozen, documented value."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, WithJsonSchema

from ascendtune.core.config import Contradiction, Section, origins_of, to_yaml, validate
from ascendtune.core.document import Document, read_document, require_no_secrets
from ascendtune.core.errors import AscendtuneError, RecipeError, all_errors, with_other_names
from ascendtune.core.files import expanded
from ascendtune.core.foreign_json import value_at
from ascendtune.core.mask import without_secrets
from ascendtune.core.overrides import apply_overrides
from ascendtune.data.spec import DataSection
from ascendtune.hub.modelscope import RepoType
from ascendtune.recipe.ignored_keys import ignored_keys
from ascendtune.recipe.llamafactory.detect import is_llamafactory_key, is_llamafactory_recipe
from ascendtune.recipe.llamafactory.translate import translate
from ascendtune.recipe.llamafactory.v1 import is_v1_key, is_v1_recipe, translate_v1
from ascendtune.recipe.method import MethodSection
from ascendtune.recipe.other_names import REMEDIES
from ascendtune.recipe.other_recipes import refuse_other_file, refuse_other_recipe
from ascendtune.recipe.parallel import ParallelSection
from ascendtune.recipe.sections import (
    NEEDS_WHOLE_MATRICES,
    AlignSection,
    BatchSection,
    CheckpointSection,
    EvalSection,
    KernelSection,
    MemorySection,
    ModelSection,
    OptimSection,
    ProfileSection,
    TrackSection,
)
from ascendtune.recipe.todo import TODO, require_decided
from ascendtune.recipe.unsupported import UNSUPPORTED_KEYS, refusals

_LONGEST_NAME = 200


def _off_of_yaml(value: Any) -> Any:
    """YAML 1.1 reads `off` without quotes as false."""
    return "off" if value is False else value


def _a_plain_name(value: str) -> str:
    if not re.fullmatch(r"[\w][\w.-]*", value):
        raise Contradiction(
            f"'{value}' is not a name for a directory",
            code="invalid-value",
            remedy="use letters, digits, '.', '_' and '-'",
            path=("name",),
        )
    # A file name has at most 255 bytes, and longer names are derived from this one.
    if len(value.encode()) > _LONGEST_NAME:
        raise Contradiction(
            f"a name of {len(value.encode())} bytes is too long for a directory",
            code="invalid-value",
            remedy=f"use at most {_LONGEST_NAME}",
            path=("name",),
        )
    return value


def _with_known_placeholders(value: str) -> str:
    if unknown := [found for found in re.findall(r"\{[^}]*\}?", value) if found != "{name}"]:
        raise Contradiction(
            f"run_dir: '{unknown[0]}' is not a placeholder",
            code="invalid-value",
            remedy="the only one is {name}",
            path=("run_dir",),
        )
    return value


_SECRETS = (
    "a recipe is copied into files and other users see the command line: remove it, "
    "and export HF_TOKEN, MODELSCOPE_API_TOKEN or what your program reads"
)


class Recipe(Section):
    """A training: model, data, method, settings. Unknown keys and impossible values are errors before the start."""

    unsupported_keys: ClassVar[Mapping[str, str]] = {**REMEDIES, **UNSUPPORTED_KEYS}

    name: Annotated[
        str,
        AfterValidator(_a_plain_name),
        # An editor's \w is ASCII only; it must not refuse Chinese names.
        WithJsonSchema({"type": "string", "pattern": r"^[^\s/\\.-][^\s/\\]*$", "maxLength": _LONGEST_NAME}),
    ] = "run"
    """Name of the run and of its directory."""
    run_dir: Annotated[str, AfterValidator(_with_known_placeholders)] = "runs/{name}"
    """Where the run directory is created; `{name}` is replaced, and an existing name gets a number."""
    model: ModelSection
    data: DataSection
    method: MethodSection = MethodSection()
    optim: OptimSection = OptimSection()
    batch: BatchSection = BatchSection()
    parallel: ParallelSection = ParallelSection()
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Type of matrix products; `auto` is the fastest type that the device supports: bf16, else fp16, else fp32. CPUs
    support bf16 with AVX512-BF16 or AMX; models of a hidden size below 128 may be faster there in fp32."""
    memory: MemorySection = MemorySection()
    kernel: Annotated[Literal["auto", "off"] | KernelSection, BeforeValidator(_off_of_yaml)] = "auto"
    """`auto` uses every fused operator that the device supports; or choose them one by one."""
    eval: EvalSection = EvalSection()
    on_nan: Literal["stop", "dump", "skip"] = "stop"
    """A loss or gradient that is not a number: stop; repeat the step with a dump for `ascendtune align nan`, then stop;
    or skip the step and count. `dump` and `skip` wait for the device in each step."""
    on_hang: Literal["warn", "restart", "stop"] = "warn"
    """If no rank reports progress any more: warn, stop the run, or restart it as often as `--max-restarts` allows."""
    checkpoint: CheckpointSection = CheckpointSection()
    track: TrackSection = TrackSection()
    align: AlignSection = AlignSection()
    profile: ProfileSection = ProfileSection()
    seed: int = Field(default=42, ge=0, lt=2**32)
    """Decides the order of rows, held-out rows, initial values of new weights and dropout."""
    deterministic: bool = False
    """Use only operations with bitwise reproducible results; slower on accelerators."""

    _notes: tuple[str, ...] = PrivateAttr(default=())
    _ignored: tuple[str, ...] = PrivateAttr(default=())
    _other_names: dict[str, str] = PrivateAttr(default_factory=dict)

    def contradictions(self) -> Iterator[Contradiction]:
        has_data = bool(self.data.eval or self.data.eval_fraction or self.data.eval_rows)
        for is_set, key in (
            (self.eval.every_steps, ("eval", "every_steps")),
            (self.eval.early_stop, ("eval", "early_stop")),
            (self.checkpoint.best, ("checkpoint", "best")),
        ):
            if is_set and not has_data:
                yield Contradiction(
                    f"{'.'.join(key)} needs evaluation data",
                    code="evaluation-data-missing",
                    remedy="set data.eval or data.eval_fraction",
                    path=key,
                )
        for refusal in refusals(self):
            yield Contradiction(refusal.what, code="refused-combination", remedy=refusal.remedy, path=refusal.path)

    @classmethod
    def load(cls, path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
        """Read and check a recipe file.

        Raises:
            RecipeError: with file, line and remedy.
        """
        return cls.load_with_origins(path, overrides)[0]

    @classmethod
    def load_with_origins(cls, path: str | Path, overrides: Sequence[str] = ()) -> tuple[Recipe, dict[str, str]]:
        """`load`, and the origin of every key's value: `file:line`, the command line, or `default`."""
        document, native = cls._read(path, overrides)
        try:
            with all_errors() as check:
                with check():
                    apply_overrides(document, native)
                # At once: further messages might repeat a secret.
                require_no_secrets(document, _SECRETS)
                _let_overrides_win(document, native)
                with check(), with_other_names(document.other_names):
                    require_decided(document)
                    recipe = validate(cls, document)
        except AscendtuneError as error:
            # Otherwise they would be reported only when everything else is right.
            error.further = (*error.further, *_missing_paths(document.values))
            raise
        recipe._notes, recipe._ignored = tuple(document.notes), tuple(document.ignored)
        recipe._other_names = document.other_names
        return recipe, origins_of(recipe, document)

    @classmethod
    def read(cls, path: str | Path, overrides: Sequence[str] = ()) -> Document:
        """The values of a recipe file, native or LLaMA-Factory's, as a native document; types are not checked.

        For a LLaMA-Factory recipe, overrides may also have its own keys.

        Raises:
            RecipeError: unreadable, not a recipe, or a LLaMA-Factory recipe that cannot be translated.
        """
        document, native = cls._read(path, overrides)
        apply_overrides(document, native)
        require_no_secrets(document, _SECRETS)
        _let_overrides_win(document, native)
        return document

    @classmethod
    def _read(cls, path: str | Path, overrides: Sequence[str]) -> tuple[Document, list[str]]:
        """The native document without the overrides that have native keys, and these overrides."""
        if isinstance(overrides, str):
            raise RecipeError(
                "the overrides are one text, not a list of texts",
                code="invalid-override",
                remedy=f"give a list: [{overrides!r}]",
            )
        refuse_other_file(Path(path), overrides)
        document = read_document(Path(path))
        native = list(overrides)
        refuse_other_recipe(document)
        if is_v1_recipe(document):
            native = _apply_foreign(document, overrides, is_v1_key)
            document = translate_v1(document)
        elif is_llamafactory_recipe(document, cls.model_fields):
            native = _apply_foreign(document, overrides, is_llamafactory_key)
            document = translate(document, os.environ)
        return document, native

    @classmethod
    def check(cls, values: dict[str, Any], source: str = "recipe") -> Recipe:
        """A recipe from plain values, with the same messages as a file."""
        return validate(cls, Document(values, source))

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the translation of a LLaMA-Factory recipe; empty for a native one."""
        return self._notes

    @property
    def other_names(self) -> Mapping[str, str]:
        """Key -> its name in the LLaMA-Factory recipe that was translated; empty for a native one."""
        return self._other_names

    @property
    def sources(self) -> list[tuple[str, RepoType]]:
        """Paths or hub ids in the recipe, with their types."""
        models = [self.model.path, *self.method.start_from]
        if self.method.preference.reference:
            models.append(self.method.preference.reference)
        data = [spec.path for spec in (*self.data.train, *self.data.eval)]
        return [*((name, "model") for name in models), *((name, "dataset") for name in data)]

    def to_yaml(self) -> str:
        return to_yaml(self)

    def run_directory(self) -> Path:
        return expanded(self.run_dir.replace("{name}", self.name))

    @property
    def learning_rate(self) -> float:
        if self.optim.learning_rate is not None:
            return self.optim.learning_rate
        if self.method.adapter is not None:
            return 1e-5 if self.method.stage == "preference" else 1e-4
        return 1e-6 if self.method.stage == "preference" else 1e-5

    @property
    def needs_whole_weights(self) -> str | None:
        """The reason why each rank needs every trained weight unsharded, as a sentence; None if shards suffice."""
        if self.method.stage == "sft" and self.method.sft.loss == "asft":
            return "the loss asft restores the weights from before training for a forward pass"
        if self.method.tuner == "oft" and self.method.oft.coft:
            return "constrained OFT changes weights in the forward pass, as no shard of them can"
        return NEEDS_WHOLE_MATRICES.get(self.optim.optimizer)

    @property
    def may_pack(self) -> bool:
        """Whether rows may share a sequence: those of a pair, and answers with a mismatched one, must stay together."""
        return self.data.packing is not False and self.method.task not in ("pairs", "singles")

    @property
    def pads_always(self) -> bool:
        """Whether rows are padded even if the model keeps them apart: dumps are compared with trainers that pad."""
        pads = bool(self.align.dump_steps) if self.align.pad == "auto" else self.align.pad
        return self.data.packing is False and pads

    @property
    def has_rows_alone(self) -> bool:
        """Whether each micro-batch is one document, so there is no padding, and no mask between documents."""
        return self.data.packing is False and self.batch.micro_batch == 1 and self.method.task != "pairs"

    def capacity(self, *, padding_free: bool) -> int | None:
        """Tokens of a packed sequence; None if rows are not packed.

        Args:
            padding_free: whether the model keeps consecutive rows apart.
        """
        return self.data.max_length if padding_free and self.may_pack else None

    def differences(self) -> list[str]:
        """Notes on differences from the tool that the recipe was written for, without those on ignored keys."""
        return [note for note in self._notes if note not in self._ignored]

    def all_without_effect(self, origins: dict[str, str]) -> list[str]:
        """Sentences on keys without effect, of this recipe and of the one that it was translated from."""
        return [*self._ignored, *self.without_effect(origins)]

    def without_effect(self, origins: dict[str, str]) -> list[str]:
        """Sentences on keys that are set but change nothing in this recipe."""
        return ignored_keys(self, origins)


_MODELS = ("model.path", "method.preference.reference", "method.lora.start_from", "method.oft.start_from")
"""Keys of paths of models and adapters."""


def _missing_paths(values: Mapping[str, Any]) -> list[AscendtuneError]:
    """Errors for the paths that do not exist, in values that are not valid."""
    from ascendtune.hub.download import require_local_paths

    def below(dotted: str) -> list[Any]:
        value = value_at(values, *dotted.split("."))
        return value if isinstance(value, list) else [value]

    models = [each for key in _MODELS for each in below(key)]
    sets = [
        each.get("path") if isinstance(each, dict) else each
        for key in ("data.train", "data.eval")
        for each in below(key)
    ]
    kinds: tuple[tuple[list[Any], RepoType], ...] = ((models, "model"), (sets, "dataset"))
    named = [(each, kind) for found, kind in kinds for each in found if isinstance(each, str) and each != TODO]
    try:
        # A message on a path repeats it.
        require_local_paths((text, kind) for text, kind in named if without_secrets(text) == text)
    except AscendtuneError as error:
        return [error]
    return []


def _apply_foreign(document: Document, overrides: Sequence[str], is_foreign: Callable[[str], bool]) -> list[str]:
    """Apply the overrides whose key belongs to the recipe's own form; return the native ones."""
    foreign = [word for word in overrides if is_foreign(word.partition("=")[0])]
    apply_overrides(document, foreign)
    return [word for word in overrides if word not in foreign]


_ALTERNATIVES = {
    "optim": (("max_steps", "epochs"), ("warmup_steps", "warmup_ratio")),
    "data": (("eval_rows", "eval_fraction"),),
}
"""Keys of a section of which a recipe has one at most."""


def _let_overrides_win(document: Document, overrides: Sequence[str]) -> None:
    """`optim.max_steps=30` on the command line replaces `optim.epochs` of the file, which it would contradict."""
    given = {word.partition("=")[0] for word in overrides}
    for name, pairs in _ALTERNATIVES.items():
        section = document.values.get(name)
        if not isinstance(section, dict):
            continue
        for one, other in pairs:
            for kept, left in ((one, other), (other, one)):
                is_set = f"{name}.{kept}" in given and section.get(kept) is not None
                if is_set and f"{name}.{left}" not in given:
                    section.pop(left, None)
                    document.places.pop((name, left), None)


__all__ = ["Recipe"]
