"""Splits the output of a model into its thought and the answer, by the marks of the chat template."""

from __future__ import annotations

from dataclasses import dataclass

from ascendtune.data.conversation import Message
from ascendtune.data.spans import TemplateRefusedRow
from ascendtune.data.template import ChatTemplate

# No template contains these itself.
_QUESTION, _THOUGHT, _ANSWER = "4917360285", "8206514973", "7302946185"
_THOUGHT_TOKENS = (("[THINK]", "[/THINK]"), ("<think>", "</think>"))
"""Begin and end of a thought for templates without thoughts: answers in the training data may contain one."""


@dataclass(frozen=True)
class Answer:
    """`thought` is empty if the model did not think, or wrote its thought as ordinary text (`<think>`)."""

    text: str
    thought: str = ""


@dataclass(frozen=True)
class AnswerMarks:
    """The marks that a template writes after the prompt, without surrounding white space.

    gpt-oss: `<|channel|>analysis<|message|>` THOUGHT `<|end|><|start|>assistant<|channel|>final<|message|>` ANSWER.
    """

    before_answer: str
    before_thought: str | None = None
    """None if the template writes no thoughts."""
    between: str = ""

    @classmethod
    def of(cls, template: ChatTemplate) -> AnswerMarks | None:
        """None if these marks are ordinary text: an answer is then shown completely, as it was generated."""
        plain, thinking = _written(template, {}), _written(template, {"reasoning_content": _THOUGHT})
        specials = template.tokenizer.special_tokens
        before, mark, rest = (thinking or "").partition(_THOUGHT)
        between = rest.partition(_ANSWER)[0].strip()
        marks = cls((plain or "").partition(_ANSWER)[0].strip())
        if mark and between and _ANSWER in rest:
            marks = cls(marks.before_answer, before.strip(), between)
        elif not mark and (pair := next((pair for pair in _THOUGHT_TOKENS if specials.issuperset(pair)), None)):
            marks = cls(marks.before_answer, *pair)
        texts = (marks.before_answer, marks.before_thought or "", marks.between)
        return marks if any(token in text for token in specials for text in texts) else None

    def split(self, text: str, *, is_whole: bool) -> Answer:
        """The parts of the text that was generated so far, including special tokens.

        Args:
            is_whole: whether the text is complete. Otherwise text that may become a mark is in neither part.
        """
        generated = text.lstrip()
        begins = self.before_thought
        if begins is not None and generated.startswith(begins):
            thought, mark, answer = generated.removeprefix(begins).partition(self.between)
            if not mark:
                thought = _without_beginning_of(self.between, thought)
            return Answer(answer.lstrip(), thought.strip())
        if not is_whole and any(mark and mark.startswith(generated) for mark in (begins, self.before_answer)):
            return Answer("")
        # A call or another channel begins in another way: it is shown with its special tokens.
        return Answer(generated.removeprefix(self.before_answer).lstrip() if self.before_answer else text)


def _written(template: ChatTemplate, keys: Message) -> str | None:
    """The text after the prompt for an answer with these keys; None if it cannot be determined."""
    question: Message = {"role": "user", "content": _QUESTION}
    try:
        prompt = template.render_prompt([question])
        text, _ = template.text_of([question, {"role": "assistant", "content": _ANSWER, **keys}])
    except TemplateRefusedRow:
        return None
    return text.removeprefix(prompt) if text.startswith(prompt) and _ANSWER in text else None


def _without_beginning_of(mark: str, text: str) -> str:
    """`text` without an end that is the beginning of `mark`."""
    ends = range(min(len(mark), len(text)), 0, -1)
    return text[: -next((size for size in ends if text.endswith(mark[:size])), 0) or None]
