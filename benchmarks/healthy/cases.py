"""The runs: which command with which settings. Runs of one chain follow each other, for later ones resume earlier."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from healthy.case import BIN, Case, Chain, Place
from healthy.programs import accelerate, commands, deepspeed, downloads, servers, tools, warned
from peers import venv

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]


def all_cases(place: Place) -> Iterator[Chain]:
    """In an order in which kinds alternate, so that a part of it is a sample of all."""
    own = (ours, torchrun, trainers, simulated, peers)
    others = (accelerate, deepspeed, warned, downloads, commands, tools, servers)
    kinds = [list(kind(place)) for kind in (*own, *others)]
    for number in range(max(map(len, kinds))):
        for kind in kinds:
            yield from kind[number : number + 1]


_OURS: dict[str, str] = {
    "full": "",
    "lora": "method.tuner=lora",
    "lora-bf16": "method.tuner=lora precision=bf16",
    "dora": "method.tuner=lora method.lora.dora=true",
    "pissa": "method.tuner=lora method.lora.init=pissa method.lora.rslora=true",
    "freeze": "method.tuner=freeze method.freeze.last_layers=1",
    "lora-saved-modules": "method.tuner=lora method.lora.modules_to_save=[embed_tokens] checkpoint.every_steps=2",
    "padded": "data.packing=false batch.per_device=2",
    "packed": "data.packing=true data.max_length=256",
    "packed-varlen": "data.packing=true model.attention=varlen",
    "eager": "model.attention=eager data.packing=false",
    "sdpa-fp32": "model.attention=sdpa_fp32 data.packing=false",
    "accumulate": "batch.accumulate=3",
    "recomputed": "memory.gradient_checkpointing=true",
    "offloaded": "memory.offload_activations=true",
    "bf16": "precision=bf16",
    "no-kernels": "kernel.rms_norm=false kernel.rotary=false kernel.swiglu=false",
    "adafactor": "optim.optimizer=adafactor",
    "sgd": "optim.optimizer=sgd optim.learning_rate=1e-2",
    "no-clipping": "optim.max_grad_norm=null optim.scheduler=constant",
    "evaluated": "data.eval_rows=8 eval.every_steps=2",
    "early-stop": "data.eval_fraction=0.1 eval.every_steps=2 eval.early_stop.patience=1 "
    "eval.early_stop.min_improvement=1.0 checkpoint.every_steps=2 optim.max_steps=8",
    "best": "data.eval_rows=8 eval.every_steps=2 checkpoint.every_steps=2 checkpoint.best=true",
    "checkpoints": "checkpoint.every_steps=1 checkpoint.keep=1",
    "random-weights": "model.init=random",
    "skip-nan": "on_nan=skip",
    "deterministic": "deterministic=true seed=7",
    "no-tensorboard": "track.tensorboard=false track.every_steps=2",
    "dropped-rows": "data.max_length=40 data.on_long_row=drop",
    "cut-rows": "data.max_length=32 data.on_long_row=truncate",
    "loss-on-all": "data.loss_on=all",
    "epochs": "optim.max_steps=null optim.epochs=0.05",
    "bad-rows": "data.train={rows}/bad.jsonl data.on_bad_row=skip",
    "pretrain": "method.stage=pretrain data.train={rows}/text.jsonl data.max_length=128",
    "pretrain-lora": "method.stage=pretrain method.tuner=lora data.train={rows}/text.jsonl data.max_length=128",
    "reward": "method.stage=reward data.train={rows}/pairs.jsonl data.packing=false",
    "reward-lora": "method.stage=reward method.tuner=lora data.train={rows}/pairs.jsonl data.packing=false",
    "dpo": "method.stage=preference data.train={rows}/pairs.jsonl data.packing=false",
    "dpo-lora": "method.stage=preference method.tuner=lora data.train={rows}/pairs.jsonl data.packing=false",
    "ipo": "method.stage=preference method.preference.loss=ipo data.train={rows}/pairs.jsonl data.packing=false",
    "orpo": "method.stage=preference method.preference.loss=orpo data.train={rows}/pairs.jsonl data.packing=false",
    "simpo": "method.stage=preference method.preference.loss=simpo data.train={rows}/pairs.jsonl data.packing=false",
    "kto": "method.stage=preference method.preference.loss=kto data.train={rows}/marked.jsonl data.packing=false",
}
_OURS_ON_TWO: dict[str, str] = {
    "ddp": "",
    "ddp-lora-bf16": "method.tuner=lora precision=bf16",
    "fsdp": "parallel.strategy=fsdp",
    "fsdp-offload": "parallel.strategy=fsdp parallel.fsdp.offload=true checkpoint.every_steps=2",
    "fsdp-lora-recomputed": "parallel.strategy=fsdp method.tuner=lora memory.gradient_checkpointing=true",
    "dpo-fsdp": "method.stage=preference parallel.strategy=fsdp data.train={rows}/pairs.jsonl data.packing=false",
    "ddp-evaluated": "data.eval_rows=8 eval.every_steps=2 checkpoint.every_steps=3",
}


def ours(place: Place) -> Iterator[Chain]:
    for name, words in _OURS.items():
        yield [_ours(place, name, words)]
    for name, words in _OURS_ON_TWO.items():
        yield [_ours(place, f"two-{name}", words, "--devices", "2")]
    for name, words in {"stopped": "", "stopped-lora": "method.tuner=lora"}.items():
        long = _ours(place, name, words + " optim.max_steps=400")
        sign = _run_dir(place, name) / "metrics.jsonl"
        # The same command resumes; a later limit of steps lets it end.
        again = _ours(place, f"{name}-resumed", words + " optim.max_steps=400", run=name)
        yield [
            Case(long.name, long.argv, interrupt_at=sign),
            Case(again.name, again.argv),
        ]
    two = _ours(place, "two-stopped", "optim.max_steps=400", "--devices", "2")
    yield [Case(two.name, two.argv, interrupt_at=_run_dir(place, "two-stopped") / "metrics.jsonl", also=two.also)]
    debug = {"ASCENDTUNE_DEBUG": "1"}
    yield [_ours(place, "debug", "", env=debug)]
    # As below: DDP does not survive DETAIL.
    detail = {**debug, "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    yield [_ours(place, "two-debug-detail", "parallel.strategy=fsdp", "--devices", "2", env=detail)]
    yield [
        _ours(place, "two-cpp-info", "", "--devices", "2", env={"TORCH_CPP_LOG_LEVEL": "INFO", "NCCL_DEBUG": "INFO"})
    ]
    yield [_ours(place, "python-warnings", "", env={"PYTHONWARNINGS": "always", "PYTHONDEVMODE": "1"})]
    yield [_ours(place, "terminal", "data.eval_rows=8 eval.every_steps=2", terminal=True)]
    yield [_ours(place, "terminal-lora", "method.tuner=lora", terminal=True)]
    yield [_ours(place, "two-terminal", "", "--devices", "2", terminal=True)]
    yield [_ours(place, "only-data", "", "--prepare")]
    yield [Case("ours-recipe-check", [str(BIN / "ascendtune"), "recipe", "check", *_recipe(place, "check", "")])]


def _ours(
    place: Place,
    name: str,
    words: str,
    *options: str,
    env: dict[str, str] | None = None,
    terminal: bool = False,
    run: str | None = None,
) -> Case:
    argv = [str(BIN / "ascendtune"), "train", *_recipe(place, run or name, words), *options]
    also = (f"{_run_dir(place, run or name).relative_to(place.directory)}/log/*.log",)
    return Case(f"ours-{name}", argv, env or {}, terminal, also=also)


def _recipe(place: Place, name: str, words: str) -> list[str]:
    """The recipe's file, and what changes."""
    file = place.directory / "recipe.yaml"
    content = {
        "model": {"path": str(place.model)},
        "data": {"train": str(place.rows / "chat.jsonl"), "max_length": 64},
        "optim": {"max_steps": 6, "learning_rate": 1e-3},
        "run_dir": str(place.directory / "out" / "{name}"),
    }
    file.write_text(json.dumps(content))
    return [str(file), f"name={name}", *words.format(rows=place.rows).split()]


def _run_dir(place: Place, name: str) -> Path:
    return place.directory / "out" / name


_TORCHRUN: dict[str, tuple[str, str, dict[str, str]]] = {
    "plain": ("--nproc-per-node 2", "", {}),
    "one": ("--nproc-per-node 1", "wrap=none noise=warn+counters", {}),
    "threads-unset": ("--nproc-per-node 2", "log=levels noise=warn", {"OMP_NUM_THREADS": ""}),
    # With DETAIL the reducer of DDP ends in a segmentation fault (torch 2.13, Gloo).
    "detail": ("--nproc-per-node 2", "wrap=none log=glog", {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
    "detail-fsdp": ("--nproc-per-node 2", "wrap=fsdp", {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
    "info-cpp": ("--nproc-per-node 2", "", {"TORCH_DISTRIBUTED_DEBUG": "INFO", "TORCH_CPP_LOG_LEVEL": "INFO"}),
    "cpp": ("--nproc-per-node 2", "wrap=none noise=counters", {"TORCH_CPP_LOG_LEVEL": "INFO"}),
    "stacks": ("--nproc-per-node 2", "wrap=fsdp log=print", {"TORCH_SHOW_CPP_STACKTRACES": "1", "NCCL_DEBUG": "WARN"}),
    "three": ("--nproc-per-node 3", "log=json noise=retry+skipped", {}),
    "json-restored": ("--nproc-per-node 2", "log=json noise=restored+warn", {"TORCH_LOGS": "distributed"}),
    "tee-bars": ("--nproc-per-node 2 --tee 3 --log-dir {out}", "log=bars noise=warn", {"TORCH_LOGS": "all"}),
    "module": ("--nproc-per-node 2 --role trainer --monitor-interval 1", "log=levels noise=skipped+retry", {}),
    "nccl-info": ("--nproc-per-node 2", "log=print", {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL"}),
    "torch-logs": ("--nproc-per-node 2", "", {"TORCH_LOGS": "+distributed,+dynamo"}),
    "elastic-info": ("--nproc-per-node 2", "noise=retry", {"TORCHELASTIC_LOG_LEVEL": "DEBUG", "LOGLEVEL": "DEBUG"}),
    "tee": ("--nproc-per-node 2 --tee 3 --log-dir {out}", "log=print noise=counters", {}),
    "redirected": ("--nproc-per-node 2 --redirects 3 --log-dir {out}", "noise=skipped", {}),
    "restarts": ("--nproc-per-node 2 --max-restarts 2", "noise=restored+retry", {}),
    "rdzv": ("--nproc-per-node 2 --rdzv-backend c10d --rdzv-id 7 --rdzv-endpoint localhost:0", "", {}),
    "bars": ("--nproc-per-node 2", "log=bars", {}),
    "json": ("--nproc-per-node 2", "log=json noise=counters+restored", {}),
    "fsdp": ("--nproc-per-node 2", "wrap=fsdp log=levels", {}),
    "fsdp-saved": ("--nproc-per-node 2", "wrap=fsdp save={out}/model", {}),
    "bf16": ("--nproc-per-node 2", "dtype=bfloat16 noise=warn", {}),
    "workers": ("--nproc-per-node 2", "workers=2 log=print", {"PYTHONWARNINGS": "always"}),
    "left": ("--nproc-per-node 2", "leave=exit noise=warn+retry+restored+counters+skipped", {}),
    "faulthandler": ("--nproc-per-node 2", "log=glog noise=skipped+counters", {"PYTHONFAULTHANDLER": "1"}),
    "flight-recorder": (
        "--nproc-per-node 2",
        "noise=skipped",
        {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "NCCL_BLOCKING_WAIT": "1"},
    ),
}


def torchrun(place: Place) -> Iterator[Chain]:
    for name, (options, words, env) in _TORCHRUN.items():
        out = place.directory / "out" / f"torchrun-{name}"
        launcher = [str(BIN / "torchrun"), *(["--standalone"] if "rdzv" not in options else [])]
        argv = [*launcher, *options.format(out=out).split(), str(_HERE / "torchrun_job.py")]
        also = (f"out/torchrun-{name}/*/attempt_0/*/*.log",)
        yield [Case(f"torchrun-{name}", [*argv, *words.format(out=out).split()], env, also=also)]


_TRAINERS: dict[str, tuple[str, str, dict[str, object], str]] = {
    "trainer": ("trainer", "chat", {}, ""),
    "trainer-debug": ("trainer", "chat", {"log_level": "debug"}, ""),
    "trainer-bf16": ("trainer", "chat", {"bf16": True, "gradient_accumulation_steps": 2}, ""),
    "trainer-evaluated": ("trainer", "chat", {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 2}, ""),
    "trainer-recomputed": ("trainer", "chat", {"gradient_checkpointing": True, "log_level": "info"}, ""),
    "trainer-quiet": ("trainer", "chat", {"disable_tqdm": True, "skip_memory_metrics": False}, ""),
    "trainer-two": ("trainer", "chat", {"ddp_find_unused_parameters": True}, "--nproc-per-node 2"),
    "trl-sft": ("sft", "chat", {}, ""),
    "trl-sft-packed": ("sft", "chat", {"packing": True, "max_length": 128}, ""),
    "trl-sft-assistant": ("sft", "chat", {"eval_strategy": "steps", "eval_steps": 2, "log_level": "info"}, ""),
    "trl-dpo": ("dpo", "pairs", {}, ""),
    "trl-kto": ("kto", "marked", {}, ""),
    "trl-reward": ("reward", "pairs", {}, ""),
    "trainer-saved": ("trainer", "chat", {"save_steps": 1, "save_total_limit": 1, "load_best_model_at_end": False}, ""),
    "trl-dpo-ipo": ("dpo", "pairs", {"loss_type": "ipo", "beta": 0.2}, ""),
    "trl-sft-two": ("sft", "chat", {}, "--nproc-per-node 2"),
    "trainer-workers": (
        "trainer",
        "chat",
        {"dataloader_num_workers": 2, "dataloader_persistent_workers": True},
        "",
    ),
    "trainer-stopped-early": (
        "trainer",
        "chat",
        {
            "stop_early": 1,
            "max_steps": 12,
            "eval_strategy": "steps",
            "eval_steps": 1,
            "save_steps": 1,
            "load_best_model_at_end": True,
            "metric_for_best_model": "eval_loss",
            "learning_rate": 0.0,
        },
        "",
    ),
    "trainer-resumed": ("trainer", "chat", {"save_steps": 2, "resume": "again"}, ""),
    "trainer-batch-found": ("trainer", "chat", {"auto_find_batch_size": True}, ""),
    "trainer-tensorboard": ("trainer", "chat", {"report_to": "tensorboard", "log_level": "info"}, ""),
    "trainer-two-workers": (
        "trainer",
        "chat",
        {"dataloader_num_workers": 2, "eval_strategy": "epoch"},
        "--nproc-per-node 2",
    ),
    "trl-grpo": ("grpo", "questions", {"num_generations": 2, "max_completion_length": 8}, ""),
    "trl-rloo": ("rloo", "questions", {"num_generations": 2, "max_completion_length": 8}, ""),
    "trl-dpo-two": ("dpo", "pairs", {"dataloader_num_workers": 1}, "--nproc-per-node 2"),
}


def trainers(place: Place) -> Iterator[Chain]:
    for name, (kind, rows, settings, launcher) in _TRAINERS.items():
        start = [str(BIN / "torchrun"), "--standalone", *launcher.split()] if launcher else [sys.executable]
        out = place.directory / "out" / name
        script = [str(_HERE / "trainer_job.py"), kind, str(place.model), str(place.rows / f"{rows}.jsonl"), str(out)]
        yield [Case(name, [*start, *script, json.dumps(settings)])]


def simulated(place: Place) -> Iterator[Chain]:
    """Ours on the simulated Ascend node of the tests."""
    if not (_ROOT / ".venv-npu" / ".installed").exists():
        return
    node = {"PYTHONPATH": str(_ROOT / "tests")}
    for name, words in {
        "npu": "",
        "npu-lora-bf16": "method.tuner=lora precision=bf16",
        "npu-fp16": "precision=fp16",
    }.items():
        case = _ours(place, name, words, "--devices", "1")
        yield [Case(case.name, [sys.executable, "-m", "ascend_node.cann", *case.argv], node, also=case.also)]
    case = _ours(place, "npu-two", "", "--devices", "2")
    yield [Case(case.name, [sys.executable, "-m", "ascend_node.cann", *case.argv], node, also=case.also)]


def peers(place: Place) -> Iterator[Chain]:
    """Where their environments were made by another benchmark."""
    factory = venv.cache_directory() / "venv" / "llamafactory" / "bin"
    if (factory / "llamafactory-cli").exists():
        for name, changes in {
            "full": {},
            "lora": {"finetuning_type": "lora", "bf16": True},
            "packed": {"packing": True},
        }.items():
            yield [_llamafactory(place, factory, name, changes)]
    swift = venv.cache_directory() / "venv" / "ms-swift" / "bin"
    if (swift / "swift").exists():
        for name, words in {
            "full": "--tuner_type full",
            "lora": "--tuner_type lora --target_modules all-linear",
        }.items():
            yield [_swift(place, swift, name, words)]


def _llamafactory(place: Place, binaries: Path, name: str, changes: dict[str, object]) -> Case:
    (place.rows / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": str(place.alpaca)}}))
    config: dict[str, object] = {
        "stage": "sft",
        "do_train": True,
        "model_name_or_path": str(place.model),
        "dataset_dir": str(place.rows),
        "dataset": "rows",
        "max_samples": 64,
        "template": "chatml",
        "cutoff_len": 128,
        "finetuning_type": "full",
        "output_dir": str(place.directory / "out" / f"llamafactory-{name}"),
        "use_cpu": True,
        "max_steps": 4,
        "logging_steps": 1,
        "report_to": "none",
        **changes,
    }
    file = place.directory / f"llamafactory-{name}.yaml"
    file.write_text(json.dumps(config))
    return Case(f"llamafactory-{name}", [str(binaries / "llamafactory-cli"), "train", str(file)])


def _swift(place: Place, binaries: Path, name: str, words: str) -> Case:
    fixed = "--model_type qwen2 --template chatml --max_length 128 --torch_dtype float32 --use_cpu true --fp16 false"
    steps = "--gradient_accumulation_steps 1 --max_steps 4 --logging_steps 1 --report_to none --eval_strategy no"
    places = f"--model {place.model} --dataset {place.alpaca}#64 --output_dir {place.directory}/out/swift-{name}"
    kept = str(place.directory / "modelscope")
    argv = [str(binaries / "swift"), "sft", *f"{places} {fixed} {steps} {words}".split()]
    return Case(f"ms-swift-{name}", argv, {"MODELSCOPE_CACHE": kept})
