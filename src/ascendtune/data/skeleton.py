"""The fast path of rendering: fill a skeleton instead of running Jinja for every row.

Conversations of one shape (the same roles in the same order) are rendered alike, except for their contents. So a shape
is rendered once, with placeholders as contents, and split at the placeholders; a row is then a concatenation, and its
spans are those of the placeholders' rendering, shifted by the lengths of the contents.

This is correct only if the template treats every content like the placeholder. Placeholders are strings that watch the
operations on them. Harmless operations copy the whole string (output, concatenation, conversion) or test a property
that is equal for all *plain* contents: not empty, no white space at either end (so trimming has no effect), and
containing none of the texts that the template searched for (`'</think>' in content`,
`content.startswith('<tool_response>')`, …), which the placeholder records. After any other operation (a length, an
index, a slice, upper case, JSON, …) the shape is rendered by Jinja, and so is every row that is not plain, or has
tools, tool calls or other keys. Constructs through which a string could become unwatched disable the fast path for the
whole template. As a second check some rows are rendered both ways (see `tokenize`), and must agree in text and spans.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from jinja2 import nodes

from ascendtune.data.conversation import Conversation, Message
from ascendtune.data.jinja import ChatEnvironment, to_json
from ascendtune.data.spans import Rendered, TemplateRefusedRow
from ascendtune.data.template import ChatTemplate

_WATCHED_FILTERS = {
    "trim",
    "string",
    "tojson",
    "length",
    "count",
    "list",
    "default",
    "d",
    "first",
    "last",
    "selectattr",
}
# A skeleton of many turns takes long to make, and hardly any other row has its shape.
_MOST_MESSAGES = 256
_UNWATCHED_METHODS = {"join", "format", "format_map", "replace"}
_KEYS = {"role", "content", "train"}

Shape = tuple[tuple[str, bool], ...]
"""(role, whether it is trained on) of every message."""


class SkeletonRenderer:
    """Renders plain conversations of `template`, with the same results as `template.render`."""

    def __init__(self, template: ChatTemplate) -> None:
        environment = _WatchingEnvironment()
        self._template = ChatTemplate(
            template.source, template.tokenizer, name=template.name, loss_on=template.loss_on, environment=environment
        )
        self._environment = environment
        self._skeletons: dict[Shape, _Skeleton | None] = {}
        self.usable = _keeps_watch(environment.parse(template.source))

    def shape_of(self, conversation: Conversation) -> Shape | None:
        """The shape that rows of one skeleton share; None for a row that Jinja must render."""
        has_more = conversation.tools or conversation.options
        if has_more or not self.usable or len(conversation.messages) > _MOST_MESSAGES:
            return None
        shape = []
        for message in conversation.messages:
            content = message["content"]
            if not content or content.strip() != content:
                return None
            # Two keys: role and content.
            if len(message) == 2:
                shape.append((message["role"], True))
            elif _KEYS.issuperset(message):
                shape.append((message["role"], message.get("train", True)))
            else:
                return None
        return tuple(shape)

    def render(self, conversation: Conversation) -> Rendered | None:
        """The rendered conversation; None if Jinja must render it."""
        shape = self.shape_of(conversation)
        return None if shape is None else self.render_as(shape, conversation)

    def render_as(self, shape: Shape, conversation: Conversation) -> Rendered | None:
        """`render` for a conversation whose shape is known."""
        if shape not in self._skeletons:
            self._skeletons[shape] = self._build(shape)
        skeleton = self._skeletons[shape]
        return skeleton.fill([message["content"] for message in conversation.messages]) if skeleton else None

    def _build(self, shape: Shape) -> _Skeleton | None:
        watch = self._environment.watch = _Watch(len(shape))
        # No EOS is added after an answer that ends with one.
        watch.searched.update(self._template.stop_tokens)
        messages: list[Message] = [
            {"role": role, "content": _Watched(text, watch), "train": train}
            for (role, train), text in zip(shape, watch.placeholders, strict=True)
        ]
        try:
            rendered = self._template.render(Conversation(messages))
        except TemplateRefusedRow:
            return None
        return None if watch.alarmed else _Skeleton(rendered, watch)


class _Skeleton:
    """Constant pieces, and between them the numbers of the messages whose contents are inserted."""

    def __init__(self, rendered: Rendered, watch: _Watch) -> None:
        numbers = {text: number for number, text in enumerate(watch.placeholders)}
        pieces = re.split("(" + "|".join(map(re.escape, watch.placeholders)) + ")", rendered.text)
        self._pieces = pieces
        self._slots = [(at, numbers[pieces[at]]) for at in range(1, len(pieces), 2)]
        self._spans = [(self._anchor(begin), self._anchor(end)) for begin, end in rendered.spans]
        searched = "|".join(map(re.escape, sorted(watch.searched)))
        self._searched = re.compile(searched) if searched else None

    def _anchor(self, position: int) -> tuple[int, int]:
        """(constant characters before `position`, slots before it); spans never begin or end inside a placeholder."""
        constant, slots, at = 0, 0, 0
        for number, piece in enumerate(self._pieces):
            if number % 2:
                if at + len(piece) > position:
                    break
                slots += 1
            else:
                constant += min(len(piece), position - at)
            at += len(piece)
            if at > position or (at == position and number % 2 == 0):
                break
        return constant, slots

    def fill(self, contents: list[str]) -> Rendered | None:
        if self._searched:
            for content in contents:
                if self._searched.search(content):
                    return None
        pieces = self._pieces.copy()
        filled, lengths = 0, [0]
        for at, number in self._slots:
            pieces[at] = content = contents[number]
            filled += len(content)
            lengths.append(filled)
        spans = [(begin + lengths[before], end + lengths[inside]) for (begin, before), (end, inside) in self._spans]
        return Rendered("".join(pieces), spans)


class _Watch:
    """Record of the operations on the placeholders of one shape."""

    def __init__(self, count: int) -> None:
        # Private-use characters: they are not white space, and no template tests for them.
        self.placeholders = [f"\uf8fecontent-{number}-of-a-row\uf8ff" for number in range(count)]
        self.searched: set[str] = set()
        self.alarmed = False

    def search(self, text: Any, *, whole: bool) -> None:
        """Record that the template compared a content with `text`. A composed `text` cannot be recorded."""
        if not isinstance(text, str) or isinstance(text, _Watched) or not text or not whole:
            self.alarmed = True
        else:
            self.searched.add(text)


class _WatchingEnvironment(ChatEnvironment):
    """Compiles templates so that joined strings stay watched."""

    watch: _Watch

    def __init__(self) -> None:
        super().__init__()
        self.filters["tojson"] = self._to_json
        self.limit_filter("tojson")

    def _to_json(self, value: Any, **options: Any) -> str:
        text = to_json(value, **options)
        self.watch.alarmed |= any(placeholder[1:-1] in text for placeholder in self.watch.placeholders)
        return text

    def concat(self, parts: Iterable[str]) -> str:
        parts = list(parts)
        text = super().concat(parts)
        watch = next((part.watch for part in parts if isinstance(part, _Watched)), None)
        return text if watch is None else _Watched(text, watch)


def _keeps_watch(tree: nodes.Template) -> bool:
    """Whether no construct of the template makes an unwatched string from a watched one and inspects it again."""
    output = {id(node) for shown in tree.find_all(nodes.Output) for node in shown.nodes}
    called = [call.node.attr for call in tree.find_all(nodes.Call) if isinstance(call.node, nodes.Getattr)]
    return (
        all(id(node) in output for node in tree.find_all(nodes.Concat))
        and all(node.name in _WATCHED_FILTERS for node in tree.find_all(nodes.Filter))
        and _UNWATCHED_METHODS.isdisjoint(called)
    )


class _Watched(str):
    """A placeholder, or a string that contains placeholders."""

    watch: _Watch

    def __new__(cls, text: str, watch: _Watch) -> _Watched:
        made = super().__new__(cls, text)
        made.watch = watch
        return made

    @property
    def _whole(self) -> bool:
        return str.__str__(self) in self.watch.placeholders

    def _again(self, text: str) -> _Watched:
        return _Watched(text, self.watch)

    def __str__(self) -> str:
        return self

    def __bool__(self) -> bool:
        return True

    def __add__(self, other: str) -> str:
        return self._again(str.__add__(self, other))

    def __radd__(self, other: str) -> str:
        return self._again(str.__add__(other, self))

    def __contains__(self, text: object) -> bool:
        self.watch.search(text, whole=self._whole)
        return False

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str) and other:
            self.watch.search(other, whole=self._whole)
        return False

    def __hash__(self) -> int:
        self.watch.alarmed = True
        return str.__hash__(self)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def startswith(self, texts: Any, *place: Any) -> bool:
        for text in texts if isinstance(texts, tuple) else (texts,):
            self.watch.search(text, whole=self._whole and not place)
        return False

    endswith = startswith

    def split(self, separator: Any = None, *limit: Any) -> list[str]:
        self.watch.search(separator, whole=self._whole)
        return [self]

    def strip(self, characters: str | None = None, /) -> str:
        return self._stripped(str.strip, characters)

    def lstrip(self, characters: str | None = None, /) -> str:
        return self._stripped(str.lstrip, characters)

    def rstrip(self, characters: str | None = None, /) -> str:
        return self._stripped(str.rstrip, characters)

    def _stripped(self, strip: Any, characters: str | None) -> str:
        self.watch.alarmed |= bool(characters and characters.strip())
        return self._again(strip(self, characters))

    def __iter__(self) -> Iterator[str]:
        # `content is iterable` only requests an iterator; reading from it inspects the content.
        self.watch.alarmed = True
        yield from str.__iter__(self)


def _alarm(name: str) -> Any:
    plain = getattr(str, name)

    def method(self: _Watched, *arguments: Any, **options: Any) -> Any:
        self.watch.alarmed = True
        return plain(self, *arguments, **options)

    return method


# All other methods of a string depend on its characters.
_OF_EVERY_OBJECT = set(dir(object)) - {"__hash__", "__lt__", "__le__", "__gt__", "__ge__", "__format__"}
for _name in set(dir(str)) - _OF_EVERY_OBJECT - set(vars(_Watched)):
    setattr(_Watched, _name, _alarm(_name))
