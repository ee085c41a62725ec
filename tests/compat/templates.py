"""Do their templates and ours write the same text?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from their_templates import TheirTemplate, read_templates

from ascendtune.data.conversation import Conversation, Message
from ascendtune.data.template import ChatTemplate
from ascendtune.data.tokenizer import Tokenizer
from ascendtune.train.llamafactory.templates import NAMES, SAME

BOS, EOS = "<bos>", "<eos>"
HELLO: list[Message] = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hi, there."}]
MORE: list[Message] = [{"role": "user", "content": "天气\n好吗?"}, {"role": "assistant", "content": "好 {{x}}"}]
SYSTEM: Message = {"role": "system", "content": "Be kind."}
CONVERSATIONS = (HELLO, [SYSTEM, *HELLO], [*HELLO, *MORE], [SYSTEM, *HELLO, *MORE, *HELLO])

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
        chosen = [each for each in CONVERSATIONS if not (name in _WITHOUT_SYSTEM and each[0]["role"] == "system")]
        for messages in chosen:
            expected = theirs[name].render(messages, bos=BOS, eos=theirs[name].eos(EOS))
            written = template.render(Conversation([*messages])).text
            # White space after the last end mark is not learnt here, so it may be missing.
            if written.rstrip() != expected.rstrip():
                raise SystemExit(f"template {name}: theirs writes {expected!r}, {ours} writes {written!r}")
        yield name, ours, f"same text for {len(chosen)} conversations"


def _tokenizer(directory: Path, template: TheirTemplate) -> Path:
    """A tokenizer to which the marks of the template are tokens, as to the models that it is for."""
    from tokenizers import Tokenizer as Engine
    from tokenizers import models

    directory.mkdir()
    tokens = list(dict.fromkeys([BOS, EOS, *template.stop_words]))
    engine = Engine(models.BPE({token: number for number, token in enumerate(tokens)}, []))
    engine.add_special_tokens(tokens)
    engine.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": template.eos(EOS)}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory
