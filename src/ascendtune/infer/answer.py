"""What a model answers, as its thought and the answer alone; the chat template tells them apart."""

from __future__ import annotations

from dataclasses import dataclass

from ascendtune.data.conversation import Message
from ascendtune.data.spans import TemplateRefusedRow
from ascendtune.data.template import ChatTemplate

# No template writes these itself.
_QUESTION, _THOUGHT, _ANSWER = "4917360285", "8206514973", "7302946185"
_THOUGHT_TOKENS = (("[THINK]", "[/THINK]"), ("<think>", "</think>"))
"""Begin and end of a thought where the template writes none, but the answers that were learnt may hold one."""


@dataclass(frozen=True)
class Answer:
    """`thought` is empty where the model did not think, or wrote its thought as ordinary text (`<think>`)."""

    text: str
    thought: str = ""


@dataclass(frozen=True)
class AnswerMarks:
    """What a template writes behind the prompt, without surrounding white space.

    gpt-oss: `<|channel|>analysis<|message|>` THOUGHT `<|end|><|start|>assistant<|channel|>final<|message|>` ANSWER.
    """

    before_answer: str
    before_thought: str | None = None
    """None where the template writes no thoughts."""
    between: str = ""

    @classmethod
    def of(cls, template: ChatTemplate) -> AnswerMarks | None:
        """None where these marks are ordinary text: an answer is then shown whole, as it was generated."""
        plain, thinking = _written(template, {}), _written(template, {"reasoning_content": _THOUGHT})
        specials = template.tokenizer.special_tokens
        before, mark, rest = (thinking or "").partition(_THOUGHT)
        between = rest.partition(_ANSWER)[0].strip()
        made = cls((plain or "").partition(_ANSWER)[0].strip())
        if mark and between and _ANSWER in rest:
            made = cls(made.before_answer, before.strip(), between)
        elif not mark and (pair := next((pair for pair in _THOUGHT_TOKENS if specials.issuperset(pair)), None)):
            made = cls(made.before_answer, *pair)
        texts = (made.before_answer, made.before_thought or "", made.between)
        return made if any(token in text for token in specials for text in texts) else None

    def split(self, text: str, *, is_whole: bool) -> Answer:
        """The parts of what was generated so far, special tokens included.

        Args:
            is_whole: nothing follows. Otherwise what may become a mark is in no part yet.
        """
        said = text.lstrip()
        begins = self.before_thought
        if begins is not None and said.startswith(begins):
            thought, mark, answer = said.removeprefix(begins).partition(self.between)
            if not mark:
                thought = _without_beginning_of(self.between, thought)
            return Answer(answer.lstrip(), thought.strip())
        if not is_whole and any(mark and mark.startswith(said) for mark in (begins, self.before_answer)):
            return Answer("")
        # A call or another channel begins otherwise: it is shown with its special tokens.
        return Answer(said.removeprefix(self.before_answer).lstrip() if self.before_answer else text)


def _written(template: ChatTemplate, keys: Message) -> str | None:
    """What is written behind the prompt of an answer with these keys; None where that cannot be told."""
    asked: Message = {"role": "user", "content": _QUESTION}
    try:
        prompt = template.render_prompt([asked])
        text, _ = template.text_of([asked, {"role": "assistant", "content": _ANSWER, **keys}])
    except TemplateRefusedRow:
        return None
    return text.removeprefix(prompt) if text.startswith(prompt) and _ANSWER in text else None


def _without_beginning_of(mark: str, text: str) -> str:
    """`text` without an end with which `mark` begins."""
    ends = range(min(len(mark), len(text)), 0, -1)
    return text[: -next((size for size in ends if text.endswith(mark[:size])), 0) or None]
