"""transformers.Trainer and TRL's trainers on a toy model: python trainer_job.py KIND MODEL ROWS OUT ['{"setting": …}'].

KIND: trainer | sft | dpo | kto | reward | grpo | rloo. ROWS: JSON lines, as `healthy_logs.py` writes them.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    EarlyStoppingCallback,
)


def main(kind: str, model_path: str, rows: str, out: str, settings: str = "{}") -> None:
    data = load_dataset("json", data_files=rows, split="train[:64]")
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    common: dict[str, Any] = {
        "output_dir": out,
        "max_steps": 4,
        "per_device_train_batch_size": 2,
        "use_cpu": True,
        "report_to": "none",
        "logging_steps": 1,
        **json.loads(settings),
    }
    resume, patience = common.pop("resume", None), common.pop("stop_early", None)
    make = _trainer if kind == "trainer" else _trl
    trainer = make(kind, model_path, tokenizer, data, common)
    if patience is not None:
        trainer.add_callback(EarlyStoppingCallback(patience))
    trainer.train()
    if resume:
        trainer = make(kind, model_path, tokenizer, data, {**common, "max_steps": 6})
        trainer.train(resume_from_checkpoint=True)
    print("done")


def _trainer(kind: str, model_path: str, tokenizer: Any, data: Any, settings: dict[str, Any]) -> Any:
    from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

    tokens = data.map(lambda row: tokenizer(str(row["messages"])[:200]), remove_columns=data.column_names)
    return Trainer(
        AutoModelForCausalLM.from_pretrained(model_path),
        TrainingArguments(**settings),
        train_dataset=tokens,
        eval_dataset=tokens.select(range(8)),
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )


def _trl(kind: str, model_path: str, tokenizer: Any, data: Any, settings: dict[str, Any]) -> Any:
    import trl

    names = {"sft": "SFT", "dpo": "DPO", "kto": "KTO", "reward": "Reward", "grpo": "GRPO", "rloo": "RLOO"}
    if kind == "reward":
        model = AutoModelForSequenceClassification.from_pretrained(model_path, num_labels=1)
        model.config.pad_token_id = tokenizer.pad_token_id
    else:
        model = AutoModelForCausalLM.from_pretrained(model_path)
    if kind in ("grpo", "rloo"):
        settings = {**settings, "per_device_train_batch_size": 4}
        return getattr(trl, names[kind] + "Trainer")(
            model,
            reward_funcs=lambda completions, **_: [float(len(str(each))) for each in completions],
            args=getattr(trl, names[kind] + "Config")(**settings),
            train_dataset=data,
            processing_class=tokenizer,
        )
    arguments = getattr(trl, names[kind] + "Config")(**{"gradient_checkpointing": False, **settings})
    return getattr(trl, names[kind] + "Trainer")(
        model, args=arguments, train_dataset=data, eval_dataset=data.select(range(8)), processing_class=tokenizer
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
