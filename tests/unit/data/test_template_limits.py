"""Chat templates that would hang or fill the memory; every one of them did."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path

import jinja2
import pytest

from ascendtune.core.errors import InputError
from ascendtune.data import template_limits
from ascendtune.data.conversation import Message
from ascendtune.data.jinja import ChatEnvironment
from ascendtune.data.template import ChatTemplate, TemplateTooCostly
from ascendtune.data.tokenizer import Tokenizer

_NS = "{% set ns = namespace(x='aaaaaaaa', y=[1]) %}{% for i in range(60) %}"
HOSTILE = {
    "nested ranges": "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    "center": "{{ 'a'.center(4000000000) }}",
    "center as a filter": "{{ 'a'|center(4000000000) }}",
    "product": "{% set x = 'a' %}{{ x * 20000000000 }}",
    "product of constants": "{{ 'a' * 20000000000 }}",
    "product of a list": "{{ ([1] * 2000000000)|length }}",
    "product of numbers": "{% set ns = namespace(x=9) %}" + "{% set ns.x = ns.x * ns.x %}" * 60,
    "macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "macro twice": "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "sum": _NS + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "joined": _NS + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "lists in lists": _NS + "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.y }}",
    "lists in lists compared": _NS + "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.y == ns.y|list }}",
    "lists in lists as JSON": _NS + "{% set ns.y = {'a': ns.y, 'b': ns.y} %}{% endfor %}{{ ns.y|tojson }}",
    "replace": _NS + "{% set ns.x = ns.x.replace('a', 'aaaa') %}{% endfor %}",
    "replace as a filter": _NS + "{% set ns.x = ns.x|replace('a', 'aaaa') %}{% endfor %}",
    "join": _NS + "{% set ns.x = ns.x.join([ns.x, ns.x]) %}{% endfor %}",
    "join as a filter": _NS + "{% set ns.x = [ns.x, ns.x]|join(ns.x) %}{% endfor %}",
    "format": "{{ '{:>4000000000}'.format(1) }}",
    "format of a width": "{{ '{:>{}}'.format(1, 4000000000) }}",
    "percent": "{{ '%4000000000d' % 1 }}",
    "percent as a filter": "{{ '%4000000000d'|format(1) }}",
    "indent": "{{ 'a\n'|indent(4000000000) }}",
    "indent of JSON": "{{ [1, 2]|tojson(indent=2000000000) }}",
    "digits": "{{ 1.5|round(999999999, 'ceil') }}",
    "bytes": "{{ (5).to_bytes(8000000000) }}",
    "batch": "{{ [1]|batch(2000000000, 'x')|list }}",
    "tabs": "{{ '\t'.expandtabs(2000000000) }}",
    "words": "{{ ('a ' * 5000000).split()|length }}",
    "lines": "{{ ('a\\n' * 5000000).splitlines()|length }}",
    "translate": "{{ ('a' * 10000).translate({97: 'b' * 100000})|length }}",
    "output": "{% set x = 'a' * 10000000 %}{% for i in range(100000) %}{{ x }}{% endfor %}",
    "set blocks": "{% set x %}aaaaaaaaaa{% endset %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60,
    "loop of a loop": "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "parentheses": "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}",
    "blocks": "{% if 1 %}" * 5000 + "{% endif %}" * 5000,
    "long source": "x" * 3_000_000,
    "one long word wrapped": "{{ ['a'*1000000]|join('b'*1000000)|wordwrap(1) }}",
    "strip": "{{ ('a' * 1000000).strip('b' * 1000000 + 'a') }}",
    "trim": "{{ ('a' * 1000000)|trim('b' * 1000000 + 'a') }}",
    "map to large results": "{{ (['a' * 10000000] * 1000)|map('upper')|list|length }}",
    "map to large results, joined": "{{ (['a' * 10000000] * 1000)|map('upper')|join|length }}",
    "map to numbers": "{{ (['a ' * 1000000] * 1000)|map('wordcount')|list|length }}",
    "map without an end": "{{ range(100000)|map('string')|map('list')|map('list')|map('list')|list }}" * 3,
    "select by a long text": "{{ (['b' * 1000] * 100000)|select('in', 'a' * 10000000)|list }}",
    "tests of each character": "{{ (['a' * 10000000] * 1000)|select('lower')|list|length }}",
    "equal lists": "{{ ([['a' * 9999999 ~ 'b']|batch(99999, 'a' * 10000000)|first] * 2)|unique|list }}",
    "lists compared": (
        "{% set x = ['a' * 9999999 ~ 'c']|batch(99999, 'a' * 9999999 ~ 'b')|first %}"
        "{{ ('a' * 9999999 ~ 'd') in x }}{{ x == x|map('string')|list }}"
    ),
    "largest of equal texts": "{{ ['a' * 9999999 ~ 'c']|batch(99999, 'a' * 9999999 ~ 'b')|first|max }}",
    "long text changed often": "{% set x = 'a' * 30000000 %}" + "{% set y = x|upper %}" * 9000,
    "long text cut often": "{% set x = 'a' * 30000000 %}" + "{% set y = x[1:] %}" * 9000,
    "long texts compared often": "{% set x = 'a' * 15000000 %}{% set z = x ~ 'b' %}" + "{{ x in z }}" * 9000,
    "name space in itself": "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
}
QUESTION: list[Message] = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]


@pytest.fixture(scope="module")
def tokenizer(make_model: Callable[..., Path]) -> Tokenizer:
    return Tokenizer.load(make_model(eos_token="<|im_end|>"))


@pytest.mark.long
@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_template_is_stopped(source: str, tokenizer: Tokenizer) -> None:
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError):
        ChatTemplate(source, tokenizer).text_of(QUESTION)
    assert time.process_time() - began < 8
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000


def test_half_a_surrogate_pair_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError) as caught:
        ChatTemplate("{{ '\\ud800' }}", tokenizer).text_of(QUESTION)
    assert caught.value.code == "template-refuses-row"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + ' ' + messages[1].content ~ '!' }}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = loop.index * 2**3 %}{% endfor %}{{ ns }}",
        "{% for m in messages %}{{ loop.length }}{{ loop.last }}{{ m.content.split('.')[0]|trim|upper }}{% endfor %}",
        "{% for m in messages if m.role == 'user' %}{{ m|tojson(indent=2) }}{% else %}none{% endfor %}",
        "{{ messages|map(attribute='content')|join(', ') }}{{ messages|selectattr('role', 'eq', 'user')|list|length }}",
        "{{ '%s: %d' % ('a', 3) }}{{ '{:>5}'.format(7) }}{{ 'a'.center(9, '*') }}{{ 'x' * 3 }}{{ [1] * 2 }}{{ 7 % 3 }}",
        "{% macro m(x, y=2) %}{{ x }}{{ y }}{{ caller() }}{% endmacro %}{% call m(1) %}inner{% endcall %}",
        "{% set a %}block{% endset %}{{ a|replace('o', '0')|indent(2)|capitalize }}{{ {'b': 1, 'a': [2]}|dictsort }}",
        "{% for k, v in messages[0].items() %}{{ k }}={{ v }}{% endfor %}{{ range(3)|list }}{{ (1, 2) }}{{ other }}",
        "{{ messages|map('length')|list }}{{ ['a', 'B']|map('upper')|join }}{{ other|map('upper')|list }}",
        "{{ ['a', 'B']|select('lower')|list }}{{ 2 is in [2] }}{{ 3 is gt 2 }}{{ 'abc'[1:] }}{{ 'a,'|trim(',') }}",
        "{{ messages[:1] == messages }}{{ messages[0] in messages }}{{ 1 < 2 < 3 }}{{ ' 7 '|int(1000000) }}",
        "{{ 'x'|float(2000000) }}{{ [2, 1]|max }}{{ messages|rejectattr('role', 'in', ['user'])|list }}",
        "{{ [3, 1, 2]|sort|reverse|list }}{{ [1, 2, 3]|sum }}{{ 'a b'.split()|batch(2)|list }}{{ messages|string }}",
    ],
)  # fmt: skip
def test_an_ordinary_template_writes_what_the_plain_sandbox_writes(source: str) -> None:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    plain.filters["tojson"] = ChatEnvironment().filters["tojson"].__wrapped__
    assert ChatEnvironment().from_string(source).render(messages=QUESTION) == plain.from_string(source).render(
        messages=QUESTION
    )


def test_every_filter_of_jinja_is_free_or_metered() -> None:
    """A filter that a new Jinja brings is metered; this list is looked at again then."""
    known = {
        *template_limits._FREE_FILTERS,
        *template_limits._GENERATING_FILTERS,
        *template_limits._REFUSED_FILTERS,
    }
    metered = set(jinja2.filters.FILTERS) - known
    assert known <= set(jinja2.filters.FILTERS)
    assert metered == {
        "abs", "batch", "capitalize", "center", "dictsort", "e", "escape", "filesizeformat", "float", "forceescape",
        "format", "groupby", "indent", "int", "join", "list", "lower", "max", "min", "replace", "reverse", "round",
        "safe", "slice", "sort", "string", "sum", "title", "tojson", "trim", "truncate", "unique", "upper", "urlencode",
        "wordcount",
    }  # fmt: skip


def test_every_test_of_jinja_compares_or_needs_no_limit() -> None:
    """A test that a new Jinja brings is looked at, as above."""
    assert set(jinja2.tests.TESTS) - set(template_limits._COMPARING_TESTS) == {
        "boolean", "callable", "defined", "divisibleby", "escaped", "even", "false", "filter", "float", "integer",
        "iterable", "mapping", "none", "number", "odd", "sameas", "sequence", "string", "test", "true", "undefined",
    }  # fmt: skip


def test_long_conversation_may_be_searched_for_each_message(tokenizer: Tokenizer) -> None:
    source = (
        "{% for m in messages %}{{ messages|selectattr('role', 'eq', 'user')|list|length }}"
        "{% if m == messages[-1] %}{{ m.content }}{% endif %}{% endfor %}"
    )
    messages: list[Message] = [*QUESTION * 300]
    assert ChatTemplate(source, tokenizer).text_of(messages)[0].endswith("300So.")


def test_the_limits_follow_the_conversation(tokenizer: Tokenizer) -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", tokenizer)
    long: list[Message] = [{"role": "user", "content": "word " * 10_000_000}]
    assert len(template.text_of(long)[0]) == 50_000_000
    copying = ChatTemplate("{% for i in range(100) %}{{ messages[0].content }}{% endfor %}", tokenizer)
    with pytest.raises(TemplateTooCostly) as caught:
        copying.text_of(long)
    assert caught.value.code == "template-too-costly"
