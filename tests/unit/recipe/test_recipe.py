import re
import time
from pathlib import Path

import jsonschema
import pytest

from ascendtune.core.document import read_document
from ascendtune.core.errors import RecipeError
from ascendtune.recipe.recipe import Recipe

TEXT = "model: {path: m}\ndata: {train: o/d}\noptim: {epochs: 3, warmup_ratio: 0.1}\n"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(TEXT)
    return path


def test_the_command_line_decides_how_long_this_start_trains(path):
    recipe, origins = Recipe.load_with_origins(path, ["optim.max_steps=30", "optim.warmup_steps=2"])
    assert (recipe.optim.max_steps, recipe.optim.epochs) == (30, None)
    assert (recipe.optim.warmup_steps, recipe.optim.warmup_ratio) == (2, 0.0)
    assert origins["optim.epochs"] == "default"
    with pytest.raises(RecipeError) as caught:
        Recipe.load(path, ["optim.max_steps=30", "optim.epochs=1"])
    assert caught.value.code == "conflicting-keys"


def test_the_command_line_decides_how_many_rows_this_start_holds_out(path):
    path.write_text("model: {path: m}\ndata: {train: o/d, eval_fraction: 0.02}\n")
    data = Recipe.load(path, ["data.eval_rows=4"]).data
    assert (data.eval_rows, data.eval_fraction) == (4, 0.0)
    assert Recipe.load(path, ["data.eval_rows=null"]).data.eval_fraction == 0.02


@pytest.mark.parametrize("value", [".inf", ".nan", "-.inf"])
def test_a_number_is_finite(path, value):
    with pytest.raises(RecipeError) as caught:
        Recipe.load(path, [f"optim.learning_rate={value}"])
    assert caught.value.code == "invalid-value"


@pytest.mark.parametrize("word", ["kernel=off", "kernel='off'"])
def test_kernels_are_off_without_quotes(path, word):
    assert Recipe.load(path, [word]).kernel == "off"


@pytest.mark.parametrize("word", ["kernel=on", "kernel=0"])
def test_kernels_are_not_chosen_by_other_values(path, word):
    with pytest.raises(RecipeError) as caught:
        Recipe.load(path, [word])
    assert caught.value.code == "invalid-value"


@pytest.mark.parametrize(("word", "said"), [("batch=null", "it is a section"), ("model=qwen", "it is a section")])
def test_a_section_without_keys_is_named_as_one(path, word, said):
    with pytest.raises(RecipeError, match=said):
        Recipe.load(path, [word])


@pytest.mark.parametrize(
    ("words", "packs"),
    [
        ([], True),
        (["data.packing=true", "method.stage=pretrain"], True),
        (["data.packing=false"], False),
        (["method.stage=reward"], False),
        (["data.packing=true", "method.stage=preference"], False),
        (["method.stage=preference", "method.preference.loss=kto"], False),
    ],
)
def test_rows_are_packed_unless_the_recipe_or_pairs_forbid_it(path, words, packs):
    recipe = Recipe.load(path, words)
    assert recipe.may_pack == packs
    assert recipe.capacity(padding_free=True) == (2048 if packs else None)
    assert recipe.capacity(padding_free=False) is None


def test_an_adapter_needs_a_base_on_disk(path):
    with pytest.raises(RecipeError) as caught:
        Recipe.load(path, ["method.tuner=lora", "model.init=random"])
    assert caught.value.code == "refused-combination"


@pytest.mark.parametrize(
    "word", ["method.stage=ppo", "method.tuner=qlora", "parallel.strategy=tp", "optim.optimizer=badam"]
)
def test_feature_not_in_this_version_is_refused(path, word):
    with pytest.raises(RecipeError) as caught:
        Recipe.load(path, [word])
    assert caught.value.code == "invalid-value"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["method.freeze.last_layers=0"], "nothing-to-train"),
        (["method.freeze.last_layers=0", "method.freeze.modules=[mlp]"], "nothing-to-train"),
        (["method.tuner=lora", "method.lora.init=pissa", "method.lora.dora=true"], "refused-combination"),
        (["method.tuner=lora", "method.lora.init=pissa", "method.lora.start_from=[a]"], "refused-combination"),
        (["method.tuner=oft", "method.oft.coft=true", "parallel.strategy=fsdp"], "refused-combination"),
        (["method.tuner=oft", "method.oft.coft=true", "parallel.strategy=deepspeed"], "refused-combination"),
        (["method.tuner=oft", "method.oft.target=[all-experts]"], "refused-combination"),
        (["method.tuner=oft", "model.init=random"], "refused-combination"),
        (["method.tuner=oft", "model.new_layers=2"], "refused-combination"),
        (["method.tuner=oft", "optim.optimizer=muon"], "refused-combination"),
        (["method.oft.rank=4", "method.oft.block_size=8"], "conflicting-keys"),
        (["method.oft.start_from=[a, b]"], "adapters-not-combinable"),
    ],
)
def test_contradictory_tuner_options_are_refused(path, words, code):
    with pytest.raises(RecipeError) as caught:
        Recipe.load(path, words)
    assert caught.value.code == code


def test_lora_rank_has_no_effect_with_start_from(path):
    recipe, origins = Recipe.load_with_origins(
        path, ["method.tuner=lora", "method.lora.start_from=[a]", "method.lora.rank=4", "method.lora.dropout=0.1"]
    )
    assert [line.split()[0] for line in recipe.without_effect(origins)] == ["method.lora.rank"]


@pytest.mark.parametrize(
    ("words", "inert"),
    [
        (["method.oft.rank=4"], ["method.oft.rank"]),
        (["method.tuner=oft", "method.oft.rank=4", "method.lora.rank=4"], ["method.lora.rank"]),
        (["method.tuner=oft", "method.oft.eps=0.1"], ["method.oft.eps"]),
        (["method.tuner=oft", "method.oft.eps=0.1", "method.oft.coft=true"], []),
        (
            [
                "method.tuner=oft",
                "method.oft.start_from=[a]",
                "method.oft.block_size=4",
                "method.oft.coft=true",
                "method.oft.module_dropout=0.1",
            ],
            ["method.oft.block_size"],
        ),
        (
            ["method.tuner=lora", "method.oft.start_from=[a]", "method.oft.block_size=4"],
            ["method.oft.block_size", "method.oft.start_from"],
        ),
        (
            ["method.tuner=oft", "method.oft.cayley_neumann=false", "method.oft.cayley_neumann_terms=7"],
            ["method.oft.cayley_neumann_terms"],
        ),
        (
            ["method.tuner=oft", "method.oft.block_share=true", "method.oft.module_dropout=0.5"],
            ["method.oft.module_dropout"],
        ),
    ],
)
def test_keys_of_oft_without_effect_are_named(path, words, inert):
    recipe, origins = Recipe.load_with_origins(path, words)
    assert [line.split()[0] for line in recipe.without_effect(origins)] == inert


def test_an_adapter_has_ten_times_the_learning_rate(path):
    rates = {tuner: Recipe.load(path, [f"method.tuner={tuner}"]).learning_rate for tuner in ("full", "lora", "oft")}
    assert rates == {"full": 1e-5, "lora": 1e-4, "oft": 1e-4}


def test_constrained_oft_needs_whole_weights(path):
    plain, constrained = (
        Recipe.load(path, ["method.tuner=oft", f"method.oft.coft={each}"]) for each in ("false", "true")
    )
    assert plain.needs_whole_weights is None and "forward pass" in str(constrained.needs_whole_weights)


def test_system_message_has_no_effect_for_plain_texts(path):
    datasets = "data.train=[{path: a.txt}, {path: b.txt, system: Be kind.}]"
    recipe, origins = Recipe.load_with_origins(path, [datasets, "method.stage=pretrain", "method.oft.eps=1"])
    assert recipe.without_effect(origins) == [
        "method.oft.eps has no effect: tuner is full (command line 'method.oft.eps=1')",
        f"data.train[1].system has no effect: texts of stage pretrain have no turns (command line '{datasets}')",
    ]
    recipe, origins = Recipe.load_with_origins(path, [datasets])
    assert recipe.without_effect(origins) == []


@pytest.mark.parametrize(
    ("words", "inert"),
    [
        (["parallel.deepspeed.stage=3"], ["parallel.deepspeed.stage"]),
        (["parallel.deepspeed.stage=3", "parallel.strategy=fsdp"], ["parallel.deepspeed.stage"]),
        (["parallel.deepspeed.stage=3", "parallel.strategy=deepspeed"], []),
        (["parallel.deepspeed.nvme_path=/fast", "parallel.strategy=deepspeed"], ["parallel.deepspeed.nvme_path"]),
    ],
)
def test_deepspeed_keys_have_no_effect_with_another_strategy(path, words, inert):
    recipe, origins = Recipe.load_with_origins(path, words)
    assert [line.split()[0] for line in recipe.without_effect(origins)] == inert


@pytest.mark.parametrize(
    ("loss", "inert"),
    [
        ("sigmoid", ["simpo_gamma", "desirable_weight", "undesirable_weight"]),
        ("simpo", ["desirable_weight", "undesirable_weight"]),
        ("orpo", ["simpo_gamma", "desirable_weight", "undesirable_weight"]),
        ("kto", ["simpo_gamma"]),
    ],
)
def test_keys_of_another_loss_have_no_effect(path, loss, inert):
    keys = ["beta", "simpo_gamma", "desirable_weight", "undesirable_weight", "sft_weight"]
    words = ["method.stage=preference", f"method.preference.loss={loss}"]
    recipe, origins = Recipe.load_with_origins(path, [*words, *(f"method.preference.{key}=0.5" for key in keys)])
    found = recipe.without_effect(origins)
    assert {line.split()[0] for line in found} == {f"method.preference.{key}" for key in inert}
    assert all(f"has no effect: loss is {loss}" in line for line in found)


@pytest.mark.parametrize("loss", ["cross_entropy", "dft", "eaft", "asft"])
def test_keys_of_another_sft_loss_have_no_effect(path, loss):
    keys = ("eaft_alpha", "asft_alpha", "neftune_alpha")
    words = [f"method.sft.loss={loss}", *(f"method.sft.{key}=0.5" for key in keys)]
    recipe, origins = Recipe.load_with_origins(path, words)
    found = [line.partition(" (")[0] for line in recipe.without_effect(origins)]
    assert found == [f"method.sft.{key} has no effect: loss is {loss}" for key in keys[:2] if key != f"{loss}_alpha"]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("parallel.tensor_parallel_size=2", "tensor parallelism is not supported in this version"),
        ("parallel.tp=2", "tensor parallelism is not supported in this version"),
        ("tp_degree=2", "tensor parallelism is not supported in this version"),
        ("model.freeze_vision_tower=true", "images, video and sound are not supported in this version"),
        ("tensor_parallel=2", "tensor parallelism is not supported in this version"),
        ("parallel.pipeline=2", "pipeline parallelism is not supported in this version"),
        ("model.load_in_4bit=true", "use model.quantization: nf4"),
        ("method.tuner=qlora", "use method.tuner: lora with model.quantization: nf4"),
        ("quantization=4", "did you mean 'model.quantization'"),
        ("method.preference.loss=dpo", "use sigmoid, which is DPO's own loss"),
        ("run_dir=x/{nme}", "'{nme}' is not a placeholder"),
    ],
)
def test_neighbours_words_are_answered_with_what_to_do(path, word, said):
    with pytest.raises(RecipeError) as raised:
        Recipe.load(path, [word])
    assert said in str(raised.value) and not raised.value.further


def test_run_directory_may_be_below_the_home_directory(path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    recipe = Recipe.load(path, ["run_dir=~/runs/{name}", "name=a"])
    assert recipe.run_directory() == Path("/home/somebody/runs/a")


def test_a_value_of_several_kinds_is_complained_of_once(path):
    with pytest.raises(RecipeError) as raised:
        Recipe.load(path, ["method.lora.target=q_proj"])
    assert raised.value.remedy == "choose one of: all-linear; or write a list: [q_proj]"
    assert not raised.value.further


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("data.packing=maybe", "choose one of: auto; or write true or false"),
        ("batch.accumulate=x", "write a whole number"),
        ("batch.per_device=x", "write a whole number; or choose one of: auto"),
        ("optim.learning_rate=fast", "write a number"),
        ("kernel={rms: 1}", "valid keys: rms_norm, rotary, swiglu, experts, adamw"),
        ("kernel=foo", "choose one of: auto, off; or it is a section: write its keys below it, or leave it out"),
        ("name=3", """write text, in quotes: "3" (on the command line: '"3"')"""),
        ("name=1e5", """write text, in quotes: "…" (on the command line: '"…"')"""),
        ("method.tuner=LoRA", "did you mean 'lora'? choose one of: full, freeze, lora, oft"),
        ("run_dir={name}", "write text; in quotes if it begins with { or ["),
        ("data.train=[]", "give at least 1"),
        ("name=no", "write text; YAML reads yes, no, on and off as true and false"),
        ("on_nan=off", "choose one of: stop, dump, skip; YAML reads yes, no, on and off as true and false"),
        ("optim='epochs:3'", "write a space after the colon: 'epochs: …'"),
        ("optim='epochs：3'", "write ':' and a space, not the full-width colon '：'"),
    ],
)
def test_remedy_names_the_expected_value(path, word, remedy):
    with pytest.raises(RecipeError) as raised:
        Recipe.load(path, [word])
    assert raised.value.remedy == remedy and not raised.value.further


def test_complaints_follow_the_lines(path):
    path.write_text("seeed: 1\nbatch: {per_device: 0}\n" + TEXT + "kernle: off\nprecision: fp8\n")
    with pytest.raises(RecipeError) as raised:
        Recipe.load(path)
    lines = [int(error.where.rpartition(":")[2]) for error in (raised.value, *raised.value.further)]
    assert lines == [1, 2, 6, 7]


def test_a_recipe_that_is_not_a_mapping_and_overrides_that_are_not_a_list_are_refused(path):
    with pytest.raises(RecipeError, match="'null' is not a mapping of keys"):
        Recipe.check(None)
    with pytest.raises(RecipeError) as caught:
        Recipe.load(path, "optim.epochs=1")
    assert caught.value.remedy == "give a list: ['optim.epochs=1']"


def test_the_first_of_very_many_errors_are_shown(path):
    path.write_text("".join(f"k{number}: 1\n" for number in range(3000)) + TEXT)
    began = time.process_time()
    with pytest.raises(RecipeError) as raised:
        Recipe.load(path)
    assert time.process_time() - began < 3
    assert raised.value.where == f"{path}:1"
    [last] = raised.value.further
    assert (last.code, last.where) == ("further-errors", str(path))
    assert len(str(raised.value)) < 2000


def _schema_accepts(recipe: object) -> bool:
    return jsonschema.Draft202012Validator(Recipe.model_json_schema()).is_valid(recipe)


@pytest.mark.parametrize("train", ["d.json", {"path": "d.json"}, [{"path": "d.json"}], ["a.json", {"path": "b.json"}]])
def test_the_schema_knows_the_short_forms_of_data_sets(train):
    recipe = {"model": {"path": "m"}, "data": {"train": train, "eval": train}}
    Recipe.check(recipe)
    assert _schema_accepts(recipe)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"name": name} for name in ("a/b", "", "two words", "../x", "n" * 201)),
        *({"data": {"train": train}} for train in ([], [{"pth": "x"}], 3, {"path": "x", "weight": 0}, [["x"]])),
    ],
)
def test_the_schema_refuses_what_the_recipe_refuses(wrong):
    recipe = {"model": {"path": "m"}, "data": {"train": "d.json"}} | wrong
    with pytest.raises(RecipeError):
        Recipe.check(recipe)
    assert not _schema_accepts(recipe)


@pytest.mark.parametrize(
    "file", sorted((Path(__file__).parents[3] / "recipes").glob("*.yaml")), ids=lambda file: file.stem
)
def test_the_schema_accepts_the_examples(file):
    assert _schema_accepts(read_document(file).values)


_TOKEN = "hf_" + "aB3" * 11


@pytest.mark.parametrize(
    "word",
    [
        f"model.path={_TOKEN}",
        "model.path=https://me:open-sesame@mirror.example/qwen",
        f"data.train=[{{path: 'https://{_TOKEN}@mirror.example/rows.jsonl'}}]",
        "track.wandb.api_key=open-sesame",
        "track.token=open-sesame",
        "password=open-sesame",
    ],
)
def test_a_secret_is_refused_without_repeating_it(path, word):
    with pytest.raises(RecipeError) as refused:
        Recipe.load(path, [word])
    assert refused.value.code == "secret-in-recipe"
    said = f"{refused.value} {refused.value.remedy} {refused.value.where}"
    assert "export HF_TOKEN" in said and word.partition("=")[0] in said
    assert _TOKEN not in said and "open-sesame" not in said


def test_a_secret_in_the_file_is_refused_with_its_line(path):
    path.write_text(TEXT + f"name: {_TOKEN}\n")
    with pytest.raises(RecipeError) as refused:
        Recipe.load(path)
    assert refused.value.code == "secret-in-recipe" and "'name'" in refused.value.what
    assert str(refused.value.where).endswith("recipe.yaml:4")


@pytest.mark.parametrize(
    "word",
    [
        "model.path=cross-encoder/ms-marco-MiniLM-L-6-v2",
        "model.path=sk-learn/a-model-with-a-long-name",
        "model.revision=0123456789abcdef0123456789abcdef01234567",
        "data.train=[{path: rows.jsonl, system: 'You keep secrets: tell nobody the password: sesame'}]",
        "model.new_tokens=['<token>']",
    ],
)
def test_value_that_resembles_a_secret_is_accepted(path, word):
    Recipe.load(path, [word])


def test_an_origin_does_not_repeat_what_may_be_a_secret(path):
    _, origins = Recipe.load_with_origins(path, ["name=key-sk-abcdefghijklmnop"])
    assert origins["name"] == "command line 'name=key-***'"


@pytest.mark.parametrize("steps", ["8-5", "0-3", "1-3,5", "1-101", "x"])
def test_profiled_steps_are_one_range_of_few_steps(path, steps):
    with pytest.raises(RecipeError) as caught:
        Recipe.load(path, [f"profile.steps='{steps}'"])
    assert caught.value.code == "invalid-value"


def test_profiled_steps_and_ranks_default_to_none_and_all(path):
    assert not Recipe.load(path).profile.window()
    asked = Recipe.load(path, ["profile.steps=5", "profile.ranks=[1]"]).profile
    assert list(asked.window()) == [5]
    assert list(asked.profiled_ranks(4)) == [1]


@pytest.mark.parametrize(
    ("packing", "align", "pads"),
    [
        ("false", {}, False),
        ("false", {"dump_steps": "1"}, True),
        ("false", {"dump_steps": "1", "pad": False}, False),
        ("false", {"pad": True}, True),
        ("auto", {"dump_steps": "1", "pad": True}, False),
    ],
)
def test_rows_that_are_not_packed_are_padded_for_dumps_or_where_asked(
    packing: str, align: dict[str, object], pads: bool
) -> None:
    data = {"train": "d.jsonl", "packing": packing == "auto" and "auto"}
    assert Recipe.check({"model": {"path": "m"}, "data": data, "align": align}).pads_always is pads


def test_padding_of_packed_rows_has_no_effect() -> None:
    recipe = Recipe.check({"model": {"path": "m"}, "data": {"train": "d.jsonl"}, "align": {"pad": True}})
    (sentence,) = recipe.without_effect({"align.pad": "recipe.yaml:3"})
    assert sentence.startswith("align.pad has no effect")


@pytest.mark.parametrize(
    ("words", "codes"),
    [
        (["a", "b=", "model.path.y=1", "seed=["], ["invalid-override"] * 2 + ["override-path-missing", "invalid-yaml"]),
        (["optim.api_key=a", "batch.token=b"], ["secret-in-recipe"] * 2),
        (
            ["optim.rate=1", "seed=x", "b=", "model.path=./m", "data.eval=[{path: e.json}, f.csv, o/d]"],
            ["unknown-recipe-key", "invalid-value", "invalid-override"] + ["path-missing"] * 3,
        ),
        (["seed=x", "method.lora.start_from=./a", "data=3"], ["invalid-value"] * 3 + ["path-missing"]),
        (
            ["optim.epochs=1", "optim.max_steps=2", "optim.warmup_ratio=0.1", "optim.warmup_steps=2"],
            ["conflicting-keys"] * 2,
        ),
        (["data.eval=o/e", "data.eval_rows=2", "data.eval_fraction=0.1"], ["conflicting-keys"] * 2),
        (
            [
                "eval.every_steps=2",
                "checkpoint.best=true",
                "model.quantization=nf4",
                "model.new_layers=2",
                "model.init=random",
            ],
            ["evaluation-data-missing"] * 2 + ["refused-combination"] * 2,
        ),
    ],
    ids=["overrides", "secrets", "paths", "paths-of-wrong-types", "one-section", "three-keys", "whole-recipe"],
)
def test_errors_of_one_check_are_reported_at_once(path, words, codes):
    with pytest.raises(RecipeError) as caught:
        Recipe.load(path, words)
    assert sorted(re.findall("code: (.*)", str(caught.value))) == sorted(codes)
