"""`ascendtune generate`"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ascendtune.cli.messages import suggest_next, warn
from ascendtune.cli.options import (
    ChatTemplate,
    Quiet,
    RunOrModel,
    SamplingSeed,
    SystemMessage,
    Temperature,
    TopP,
    TrustRemoteCode,
)
from ascendtune.cli.run_names import model_named
from ascendtune.cli.terminal import print_json
from ascendtune.core.errors import InputError
from ascendtune.core.units import count_of

if TYPE_CHECKING:
    from ascendtune.data.conversation import Message
    from ascendtune.infer.answer import Answer
    from ascendtune.infer.prompts import Prompt


def generate(
    model: RunOrModel,
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; `-` or a pipe: read stdin.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Answer every line (.txt) or row (.jsonl, .json, …) of this file.")
    ] = None,
    system: SystemMessage = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens in an answer.")] = 256,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: SamplingSeed = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts per batch.")] = 32,
    template: ChatTemplate = "auto",
    trust_remote_code: TrustRemoteCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON line for each answer.")] = False,
    quiet: Quiet = False,
) -> None:
    """Generate answers with a run's final weights, or any model.

    \b
    ascendtune generate runs/alpaca-qwen "Give three tips for staying healthy."
    ascendtune generate runs/alpaca-qwen --file rows.jsonl --json > answers.jsonl

    Prompts use the chat template of training. Rows have `prompt`, `messages`, or any format of training data; the last
    answer in a row is not part of the prompt, and is printed as `expected` by --json. A thought that special tokens set
    apart (gpt-oss, Gemma 4) is not printed; --json has it as `reasoning_content`.
    """
    from ascendtune.core import log
    from ascendtune.core.progress_bar import ProgressBar
    from ascendtune.infer.engine import load

    log.set_up(quiet=quiet)
    prompts = _prompts(prompt, file, system)
    with ProgressBar(sys.stderr) as progress:
        with progress.counting("loading the model"):
            named = model_named(model, trust_remote_code=trust_remote_code)
            engine = load(named, template=template, trust_remote_code=trust_remote_code)
        answers = engine.answers(
            [each.messages for each in prompts],
            max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            batch_size=batch_size,
            tools=[each.tools for each in prompts],
            template_options=[each.options for each in prompts],
            progress=lambda done, total: progress.show("answers", done, total),
        )
        printed, unfinished = 0, 0
        try:
            for question, answer in zip(prompts, answers, strict=True):
                with progress.hidden():
                    if as_json:
                        print_json(_as_plain(question, answer), indent=None)
                    else:
                        print(answer.text, flush=True)
                printed, unfinished = printed + 1, unfinished + (bool(answer.thought) and not answer.text)
        except KeyboardInterrupt:
            if len(prompts) > 1:
                warn(f"stopped: the first {printed:,} of {count_of(len(prompts), 'answer')} are printed")
            raise
    if unfinished:
        warn(f"{count_of(unfinished, 'answer')} ended within the thought; set --max-new-tokens higher")
    suggest_next(f"ascendtune chat {shlex.quote(model)}")


def _prompts(prompt: str | None, file: Path | None, system: str | None) -> list[Prompt]:
    from ascendtune.infer.prompts import Prompt, read_prompts

    if file is not None:
        if prompt is not None:
            raise InputError(
                "PROMPT and --file exclude each other", code="conflicting-options", remedy="keep one of them"
            )
        return read_prompts(file, system)
    if prompt in (None, "-"):
        if sys.stdin.isatty():
            raise InputError(
                "no prompt was given",
                code="prompt-missing",
                remedy="give a PROMPT or --file; for a conversation use `ascendtune chat`",
            )
        prompt = sys.stdin.read().rstrip("\n")
    if not prompt:
        raise InputError("the prompt is empty", code="prompt-missing", remedy="give a PROMPT, or text on stdin")
    messages: list[Message] = [{"role": "user", "content": prompt}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return [Prompt(messages)]


def _as_plain(question: Prompt, answer: Answer) -> dict[str, Any]:
    return {
        "messages": question.messages,
        "answer": answer.text,
        "reasoning_content": answer.thought or None,
        "expected": question.expected,
    }
