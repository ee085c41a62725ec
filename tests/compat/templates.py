"""Do their templates and ours write, and learn, the same text?"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from their_templates import TheirTemplate, read_templates

from ascendtune.data.conversation import Conversation, Message
from ascendtune.data.spec import LAST_THOUGHT
from ascendtune.data.template import ChatTemplate
from ascendtune.data.tokenizer import Tokenizer
from ascendtune.recipe.llamafactory.data import NAMES, SAME, WITHOUT_THOUGHT

BOS, EOS = "<bos>", "<eos>"
HELLO: list[Message] = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hi, there."}]
MORE: list[Message] = [{"role": "user", "content": "天气\n好吗?"}, {"role": "assistant", "content": "好 {{x}}"}]
SYSTEM: Message = {"role": "system", "content": "Be kind."}
CONVERSATIONS = (HELLO, [SYSTEM, *HELLO], [*HELLO, *MORE], [SYSTEM, *HELLO, *MORE, *HELLO])
QUESTION: Message = {"role": "user", "content": "Why?"}

# Where ours is another text on purpose; a note says so when such a template is used.
_WITHOUT_SYSTEM = {"alpaca"}


def compare(source: Path, workshop: Path) -> Iterator[tuple[str, str, str]]:
    """For every template of theirs that is known here: (name, ours, what became of it).

    Args:
        source: their data/template.py.
        workshop: an empty directory, for tokenizers.
    """
    theirs = read_templates(source)
    if strangers := sorted(set(theirs) - set(NAMES)):
        raise SystemExit(f"templates that are not known here: {', '.join(strangers)}")
    for name, ours in SAME.items():
        if name not in theirs:
            yield name, ours, "not in this release of theirs"
            continue
        tokenizer = Tokenizer.load(_tokenizer(workshop / name, theirs[name]))
        template = ChatTemplate.load(ours, tokenizer)
        chosen = [*CONVERSATIONS, *_with_thoughts(*theirs[name].thought_words)]
        chosen = [each for each in chosen if not (name in _WITHOUT_SYSTEM and each[0]["role"] == "system")]
        for messages in chosen:
            _require_same(theirs[name], template, messages, last_only=False)
        of_the_last = ChatTemplate.load(ours + (LAST_THOUGHT if name in WITHOUT_THOUGHT else ""), tokenizer)
        for messages in chosen:
            _require_same(theirs[name], of_the_last, messages, last_only=True)
        yield name, ours, f"same text, learnt alike, for {len(chosen)} conversations and as many preferences"


def _with_thoughts(begin: str, end: str) -> list[list[Message]]:
    first: Message = {"role": "assistant", "content": f"{begin}hm{end}fine"}
    last: Message = {"role": "assistant", "content": f"{begin}so{end}it is"}
    return [[QUESTION, first, QUESTION, last], [QUESTION, first, *HELLO]]


def _require_same(theirs: TheirTemplate, template: ChatTemplate, messages: list[Message], *, last_only: bool) -> None:
    pieces = theirs.write(messages, bos=BOS, eos=theirs.eos(EOS), last_only=last_only)
    shown = [message | {"train": not last_only} for message in messages[:-1]] + [messages[-1]]
    rendered = template.render(Conversation(shown))
    # White space after the mark that ends an answer is not learnt here, and may be missing after the last one.
    expected = ["".join(text for text, _ in pieces).rstrip(), *(text.rstrip() for text, learnt in pieces if learnt)]
    written = [rendered.text.rstrip(), *(rendered.text[begin:end].rstrip() for begin, end in rendered.spans)]
    if written != expected:
        raise SystemExit(f"template {theirs.name}: theirs writes and learns {expected}, {template.name} {written}")


def _tokenizer(directory: Path, template: TheirTemplate) -> Path:
    """A tokenizer to which the marks of the template are tokens, as to the models that it is for."""
    from tokenizers import Tokenizer as Engine
    from tokenizers import models

    directory.mkdir()
    marks = re.findall(r"<\|\w+\|>", str(template.slots))
    tokens = list(dict.fromkeys([BOS, EOS, *template.stop_words, *marks]))
    engine = Engine(models.BPE({token: number for number, token in enumerate(tokens)}, []))
    engine.add_special_tokens(tokens)
    engine.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": template.eos(EOS)}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory
