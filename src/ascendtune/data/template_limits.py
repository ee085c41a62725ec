"""Limits for chat templates, which come with models from untrusted sources.

Jinja's sandbox protects the machine's data, not its time and memory. Here every operation whose result can be larger
than its operands is metered first, every iteration of a loop and every call is a step, and output is counted. The
limits count steps and characters, not seconds, so that the same data have the same result on any machine; processor
time is limited as well, in case an operation costs more than is counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, cast

from jinja2 import nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from ascendtune.data.metered_code import MeteringCodeGenerator
from ascendtune.data.operation_costs import (
    GROWING_FILTERS,
    GROWING_METHODS,
    WIDE_FORMAT,
    WIDEST,
    length,
    texts_in,
)

_STEPS, _STEPS_PER_MESSAGE = 200_000, 1000
_CHARACTERS, _CHARACTERS_PER_GIVEN = 32_000_000, 64
_CPU_SECONDS, _CPU_SECONDS_PER_MEGABYTE = 5.0, 1.0
_STEPS_BETWEEN_LOOKS = 256
# Cost of a list or an object, in characters: about the time to visit it.
_NODE = 64
_MOST_BITS = 100_000
_LONGEST_SOURCE = 250_000

# Filters that look at no more than the first or last element.
_FREE_FILTERS = frozenset(("attr", "count", "d", "default", "first", "items", "last", "length", "random"))
# Their arguments are numbers, not widths.
_NUMBER_FILTERS = ("float", "int")
# These return generators, which apply another filter or a test to each element.
_GENERATING_FILTERS = ("map", "reject", "rejectattr", "select", "selectattr")
# Useless in a chat template, and expensive: regular expressions over any text, random text, words of any length.
_REFUSED_FILTERS = ("pprint", "striptags", "urlize", "wordwrap", "xmlattr")
# Tests that compare, or look at each character.
_COMPARING_TESTS = (
    "==", "!=", ">", ">=", "<", "<=", "eq", "equalto", "ne", "gt", "greaterthan", "ge", "lt", "lessthan", "le", "in",
    "lower", "upper",
)  # fmt: skip
_REFUSED_GLOBALS = ("lipsum",)


class LimitExceeded(Exception):
    """The template exceeds the limits of a rendering."""


class Meter:
    """The remaining budget of one rendering."""

    def __init__(self) -> None:
        self.start(0, 0)

    def start(self, messages: int, characters: int) -> None:
        """Begin a rendering of `messages` messages with `characters` characters in all."""
        self._steps = _STEPS + _STEPS_PER_MESSAGE * messages
        self._characters = _CHARACTERS + _CHARACTERS_PER_GIVEN * characters
        self._seconds = _CPU_SECONDS + _CPU_SECONDS_PER_MEGABYTE * characters / 1e6
        self._until: float | None = None

    def step(self) -> None:
        self._steps -= 1
        if not self._steps % _STEPS_BETWEEN_LOOKS:
            self._look()

    def spend(self, characters: int) -> None:
        self._characters -= characters
        if self._characters < 0:
            raise LimitExceeded("it writes many times more text than its input has")

    def weigh(self, value: Any) -> None:
        """Spend the size of `value` as it is written out; nested lists may contain the same list many times."""
        waiting = [value]
        while waiting:
            each = waiting.pop()
            if isinstance(each, str):
                self.spend(length(each) + 2)
            elif isinstance(each, dict):
                self.spend(8 * len(each) + _NODE)
                waiting += [*each.keys(), *each.values()]
            elif isinstance(each, list | tuple | set | frozenset):
                self.spend(8 * len(each) + _NODE)
                waiting += each
            elif isinstance(each, Namespace):
                # It may contain itself.
                self.spend(_NODE)
                waiting += object.__getattribute__(each, "_Namespace__attrs").values()
            else:
                self.spend(each.bit_length() // 3 + 1 if isinstance(each, int) else 20)

    def _look(self) -> None:
        if self._steps < 0:
            raise LimitExceeded("its loops and calls do not end")
        now = time.thread_time()
        if self._until is None:
            self._until = now + self._seconds
        elif now > self._until:
            raise LimitExceeded("it takes too long")


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """Compiles templates that are metered. Call `meter.start` before each rendering."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, **options: Any) -> None:
        self.meter = Meter()
        super().__init__(finalize=_finalizer(self.meter), **options)
        self.code_generator_class = MeteringCodeGenerator
        for name in _REFUSED_GLOBALS:
            del self.globals[name]
        for name in _REFUSED_FILTERS:
            del self.filters[name]
        for name in set(self.filters) - _FREE_FILTERS - set(_GENERATING_FILTERS):
            self.limit_filter(name)
        for name in _GENERATING_FILTERS:
            self._count_elements(name)
        for name in _COMPARING_TESTS:
            self._limit_test(name)
        self.filters["list"] = self._listed
        self.filters[_COUNTED] = self._counted

    def limit_filter(self, name: str) -> None:
        """Meter the filter `name`: its input is spent as if it were written out."""
        plain, meter = self.filters[name], self.meter
        value_at = 1 if hasattr(plain, "jinja_pass_arg") else 0

        @wraps(plain)
        def metered(*arguments: Any, **options: Any) -> Any:
            meter.step()
            value, rest = arguments[value_at], [*arguments[value_at + 1 :], *options.values()]
            if not isinstance(value, str | int | float | dict | list | tuple):
                # A generator can be read only once.
                value = list(value) if isinstance(value, Iterator) else value
                arguments = (*arguments[:value_at], value, *arguments[value_at + 1 :])
            meter.weigh(value)
            if name not in _NUMBER_FILTERS:
                _require_narrow(rest)
            for each in rest:
                meter.weigh(each)
            if grows := GROWING_FILTERS.get(name):
                meter.spend(grows(value, rest))
            result = plain(*arguments, **options)
            if isinstance(result, str | list):
                meter.spend(length(result))
            return result

        self.filters[name] = metered

    def _count_elements(self, name: str) -> None:
        """Meter each element that the filter `name` takes and returns: a filter on it may do anything but loop."""
        plain = self.filters[name]

        @wraps(plain)
        def metered(context: Context, value: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
            results = plain(context, self._each(value) if value else (), *arguments, **options)
            return map(self.compared, results) if name == "map" else results

        self.filters[name] = metered

    def _each(self, values: Iterable[Any]) -> Iterator[Any]:
        for each in values:
            self.meter.step()
            yield self.compared(each)

    def _limit_test(self, name: str) -> None:
        tests = cast(dict[str, Any], self.tests)
        plain = tests[name]

        @wraps(plain)
        def metered(*values: Any) -> bool:
            return bool(plain(*map(self.compared, values)))

        tests[name] = metered

    def compared(self, value: Any) -> Any:
        """Meter an operand of `==`, `in` and others, each of whose characters may be looked at.

        A list may contain the same long text many times.
        """
        if isinstance(value, str):
            self.meter.spend(length(value))
        elif isinstance(value, list | tuple):
            self.meter.weigh(value)
        return value

    def sliced(self, value: Any) -> Any:
        """Meter the result of `value[begin:end]`."""
        if isinstance(value, str | list | tuple):
            self.meter.spend(length(value))
        return value

    def concat(self, parts: Iterable[str]) -> str:
        """Join the output of a template or of a block in it."""
        parts = list(parts)
        self.meter.spend(sum(map(str.__len__, parts)))
        return "".join(parts)

    def plus(self, parts: tuple[Any, ...]) -> Any:
        """`a + b + c`, a few operands at once."""
        each = iter(parts)
        result = next(each)
        for part in each:
            result = result + part
        if result.__class__ is str:
            self.meter.spend(len(result))
        elif isinstance(result, str | list | tuple):
            self.meter.spend(length(result))
        return result

    def made(self, collection: Any) -> Any:
        """Meter a literal `[a, b]`: nested lists double with every level, and comparing two takes as long as writing
        them."""
        for each in collection.values() if isinstance(collection, dict) else collection:
            if isinstance(each, list | tuple | dict):
                self.meter.weigh(each)
        return collection

    def joined(self, parts: tuple[Any, ...]) -> str:
        """`a ~ b ~ c`."""
        for each in parts:
            self.finalize(each)  # type: ignore[misc]
        text = "".join(map(str, parts))
        self.meter.spend(len(text))
        return text

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            self._spend_for_format(left, [right])
        elif operator == "*":
            self._require_small_product(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _require_bits(left.bit_length() * abs(right))
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, str):
            self.meter.spend(length(result))
        return result

    def call(self, context: Context, obj: Any, *arguments: Any, **options: Any) -> Any:
        self.meter.step()
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str | bytes | int):
            name = getattr(obj, "__name__", "")
            if grows := GROWING_METHODS.get(name):
                if name == "join" and arguments:
                    arguments = (list(arguments[0]), *arguments[1:])
                    self.meter.weigh(arguments[0])
                _require_narrow(arguments)
                self.meter.spend(grows(owner, arguments))
        elif (wrapped := getattr(obj, "__wrapped__", None)) is not None:
            # Jinja's own functions for str.format and str.format_map.
            self._spend_for_format(str(wrapped.__self__), [*arguments, *options.values()])
        result = super().call(context, obj, *arguments, **options)
        if isinstance(result, str):
            self.meter.spend(length(result))
        return self.made(result) if type(result) is dict else result

    def _listed(self, value: Any) -> list[Any]:
        """The filter `list`, which templates also use internally: it does not enlarge the elements."""
        if isinstance(value, str):
            self.meter.spend(64 * length(value))
        result = list(value)
        self.meter.spend(8 * len(result))
        return result

    def _counted(self, iterable: Any) -> _Counted:
        return _Counted(iterable, self.meter)

    def _spend_for_format(self, pattern: str, values: list[Any]) -> None:
        if WIDE_FORMAT.search(pattern):
            raise LimitExceeded("it formats text to a width that no conversation needs")
        self.meter.weigh(values)
        # Each placeholder may repeat the largest value.
        places = pattern.count("%") + pattern.count("{")
        self.meter.spend(places * max((len(each) for each in texts_in(values)), default=0))

    def _require_small_product(self, left: Any, right: Any) -> None:
        if isinstance(left, int) and isinstance(right, int):
            _require_bits(left.bit_length() + right.bit_length())
        for sequence, times in ((left, right), (right, left)):
            if isinstance(sequence, str | bytes | list | tuple) and isinstance(times, int):
                # Every element of a list takes eight bytes, as much as a text of eight characters.
                width = 8 if isinstance(sequence, list | tuple) else 1
                self.meter.spend(width * len(sequence) * max(times, 0))

    def _generate(self, source: nodes.Template, name: Any, filename: Any, defer_init: bool = False) -> str:
        for loop in source.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, _COUNTED, [], [], None, None, lineno=loop.lineno, environment=self)
        return super()._generate(source, name, filename, defer_init)


_COUNTED = "counted"


def _finalizer(meter: Meter) -> Callable[[Any], Any]:
    """The function that Jinja calls for all output."""

    def finalize(value: Any) -> Any:
        if value.__class__ is not str and isinstance(value, dict | list | tuple | set | frozenset | Namespace):
            meter.weigh(value)
        return value

    return finalize


class _Counted:
    """An iterable that counts a step for each element."""

    def __init__(self, iterable: Any, meter: Meter) -> None:
        self._iterable = iterable
        self._meter = meter

    def __len__(self) -> int:
        return len(self._iterable)

    def __iter__(self) -> Iterator[Any]:
        step = self._meter.step
        for each in self._iterable:
            step()
            yield each


def require_short(source: str) -> None:
    """Raises:
    LimitExceeded: longer than any template.
    """
    if len(source) > _LONGEST_SOURCE:
        raise LimitExceeded(f"it has {len(source):,} characters, more than {_LONGEST_SOURCE:,}")


def _require_bits(bits: int) -> None:
    if bits > _MOST_BITS:
        raise LimitExceeded("it computes with numbers that no conversation needs")


def _require_narrow(values: Iterable[Any]) -> None:
    if any(isinstance(each, int) and abs(each) > WIDEST for each in values):
        raise LimitExceeded("it uses a width that no conversation needs")
