"""A chat template renders as transformers renders it, or is refused in one line and in bounded work."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from asynclane.server.text.chat_template import ChatTemplate, TemplateFailure, TemplateRefusal

from ...support.published import TEMPLATE

SPECIALS = {"bos_token": "<s>", "eos_token": "</s>"}
CHAT = [
    {"role": "system", "content": "Be brief.\n"},
    {"role": "user", "content": " Hi {{ bos_token }} "},
    {"role": "assistant", "content": "<think>no</think>Yes"},
    {"role": "user", "content": "Why?"},
]
LLAMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system = '<<SYS>>' ~ messages[0]['content'] ~ '<</SYS>>' %}{% else %}{% set loop_messages = messages %}"
    "{% set system = none %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}"
    "{% endif %}{% if loop.first and system %}{{ system }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'].strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' ~ message['content'] | trim ~ eos_token }}{% endif %}{% endfor %}"
)
MACROS = """{%- macro turn(message, last=false) -%}
    <|{{ message.role | upper }}|>{{ message.content.split('</think>')[-1] | tojson }}{{ '' if last else '\\n' }}
{%- endmacro -%}
{%- set ns = namespace(count=0, roles=[]) -%}
{% for message in messages if message.role != 'tool' %}
  {% if message.role == 'system' %}{% continue %}{% endif %}
  {% set ns.count = ns.count + 1 %}{% set ns.roles = ns.roles + [message.role] %}
  {{- turn(message, loop.last) }}{% if loop.nextitem is defined %}{{ loop.revindex }}{% endif %}
  {% generation %}{{ '-' * loop.length }}{% endgeneration %}
{% endfor %}
{%- if add_generation_prompt %}<|{{ ns.count }}:{{ ns.roles | join(',') }}:{{ '%s' % messages[-1]['role'] }}|>
{%- endif %}
{%- for key, value in messages[0].items() %}{{ '{}={}'.format(key, value) }}{% else %}none{% endfor %}
{% if tools is not none %}{{ tools }}{% endif %}"""
PARTS = (
    "{% for message in messages %}<{{ message.role }}>{% for part in message.content %}{% if part.type == 'text' %}"
    "{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
)
EITHER = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{{ m.content[0].text }}{% endif %}"
)
EITHER += "{% endfor %}"


@pytest.mark.parametrize("source", [TEMPLATE, LLAMA, MACROS, EITHER], ids=["llada", "llama", "macros", "either"])
@pytest.mark.parametrize("opened", [False, True])
def test_a_conversation_is_rendered_as_transformers_renders_it(source: str, opened: bool) -> None:
    theirs, _ = render_jinja_template([CHAT], chat_template=source, add_generation_prompt=opened, **SPECIALS)
    assert ChatTemplate(source, SPECIALS).render(CHAT, opened=opened) == theirs[0]


@pytest.mark.parametrize(
    "source", [PARTS, "{% for m in messages %}{{ m.role + m.content[0]['text'] }}{% endfor %}"], ids=["drops", "fails"]
)
def test_content_is_passed_as_parts_where_a_string_would_not_be_shown(source: str) -> None:
    template = ChatTemplate(source, SPECIALS)
    assert all(message["content"] in template.render(CHAT, opened=True) for message in CHAT)
    around = template.around_last(CHAT[:3])
    assert around is not None
    assert "Hi {{ bos_token }}" in around[0]
    assert around[1] == ""


def test_a_template_that_refuses_the_conversation_of_the_trial_may_accept_others() -> None:
    template = ChatTemplate("{% if messages|length < 2 %}{{ raise_exception('more') }}{% endif %}ok", SPECIALS)
    assert template.render(CHAT, opened=True) == "ok"
    with pytest.raises(TemplateRefusal, match="more"):
        template.render(CHAT[:1], opened=True)


def test_a_failure_with_later_messages_names_the_template() -> None:
    template = ChatTemplate("{{ messages[0].content }}{% if messages[1] %}{{ messages + 1 }}{% endif %}", SPECIALS)
    with pytest.raises(TemplateFailure, match="the chat template fails: TypeError: can only concatenate list"):
        template.render(CHAT, opened=True)


GROWS = "{%% set ns = namespace(s=%s) %%}{%% for i in range(99) %%}{%% set ns.s = %s %%}{%% endfor %%}{{ ns.s }}"
FAILURES: dict[str, tuple[Any, str]] = {
    "no syntax": ("{% if %}", "does not compile: TemplateSyntaxError"),
    "no text": (5, "does not compile: TypeError"),
    "an unknown filter": ("{{ messages | summary }}", "does not compile: .*summary"),
    "too deep for Python": ("{% if 1 %}" * 200 + "{% endif %}" * 200, "does not compile"),
    "a wrong type": ("{{ messages[0].content + 1 }}", "fails: TypeError: can only concatenate str"),
    "another file": ("{% include 'x' %}", "fails: TypeError: no loader"),
    "no text of the message": ("Hello.", "does not show the text of a user's message"),
    "the role alone": ("{% for m in messages %}{{ m.role }}{% endfor %}", "does not show the text"),
}
WORK = {
    "loops within loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a long range": "{% for a in range(10 ** 9) %}{% endfor %}",
    "macros that call themselves": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    ),
    "a repeated string": "{{ 'x' * 10 ** 10 }}",
    "a power": "{{ 10 ** (10 ** 10) }}",
    "a power of a variable": "{% set n = messages | length + 9 %}{{ n ** (n ** n) }}",
    "squares": GROWS % ("3", "ns.s * ns.s"),
    "doubled strings": GROWS % ("'ab'", "ns.s ~ ns.s"),
    "added strings": GROWS % ("'ab'", "ns.s + ns.s"),
    "joined strings": GROWS % ("'ab'", "[ns.s, ns.s] | join"),
    "doubled lists": GROWS % ("[1]", "ns.s + ns.s"),
    "lists of lists": GROWS % ("[1]", "[ns.s, ns.s]"),
    "replaced strings": GROWS % ("'ab'", "ns.s.replace('a', ns.s)"),
    "a filter with a width": "{{ 'a' | center(10 ** 10) }}",
    "a method with a width": "{{ 'a'.ljust(10 ** 10) }}",
    "a format with a width": "{{ '%9999999999d' % 1 }}",
    "a format filter with a width": "{{ '%9999999999d' | format(1) }}",
    "a format method with a width": "{{ '{:9999999999}'.format(1) }}",
    "a format with a width as a value": "{{ '%*d' % (10 ** 10, 1) }}",
    "a format with a width in a list": "{{ '{0[0]:{0[1]}}'.format([1, 10 ** 10]) }}",
    "a format with a width by its name": "{{ '{a:{b}}'.format(a=1, b=10 ** 10) }}",
    "a format with a width before a fault": "{{ '{:{}}{'.format(1, 10 ** 10) }}",
    "a format of a dict with a width": "{{ '{a:{b}}'.format_map({'a': 1, 'b': 10 ** 10}) }}",
    "a format filter with a width as a value": "{{ '%*d' | format(10 ** 10, 1) }}",
    "a precision as a value": "{{ '%.*f' % (10 ** 10, 1) }}",
    "bytes with a width": "{{ 'a'.encode().center(10 ** 10) }}",
    "a format of bytes with a width": "{{ ('%*d'.encode() % (10 ** 10, 1)) | length }}",
    "bytes of a number": "{{ (1).to_bytes(10 ** 10, 'big') | length }}",
    "tabs with a width": "{{ '\\t'.expandtabs(10 ** 10) }}",
    "zeros": "{{ '1'.zfill(10 ** 10) }}",
    "an indent with a width": "{{ 'a\\nb' | indent(10 ** 10) }}",
    "a width given to a macro": "{% macro f(n) %}{{ 'x' | center(n) }}{% endmacro %}{{ f(10 ** 10) }}",
    "a width in a namespace": "{% set ns = namespace(n=10 ** 10) %}{{ 'x' * ns.n }}",
    "a width that is a default": "{{ 'x' * (none | default(10 ** 10, true)) }}",
    "a mapped filter": "{{ range(99999) | map('center', 99999) | join }}",
    "a batch": "{{ [1] | batch(10 ** 10, 'x') | list }}",
    "an indent": "{{ messages | tojson(indent=10 ** 10) }}",
    "much output": "{% set s = 'x' * 10 ** 5 %}{% for i in range(9999) %}{{ s }}{% endfor %}",
    "much output in a block": (
        "{% set s = 'x' * 10 ** 5 %}{% set t %}{% for i in range(9999) %}{{ s }}{% endfor %}{% endset %}"
    ),
}


@pytest.mark.parametrize(("source", "message"), FAILURES.values(), ids=FAILURES)
def test_a_template_that_fails_is_refused_at_start_in_one_line(source: Any, message: str) -> None:
    with pytest.raises(TemplateFailure, match=f"^the chat template {message}") as caught:
        ChatTemplate(source, SPECIALS)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_the_work_of_a_template_is_bounded_at_start_and_later(work: str) -> None:
    with pytest.raises(TemplateFailure, match="TooMuchWork"):
        ChatTemplate("{{ messages[0].content }}" + work, SPECIALS)
    later = ChatTemplate("{{ messages[0].content }}{% if messages | length > 1 %}" + work + "{% endif %}", SPECIALS)
    assert later.render(CHAT[:1], opened=True) == CHAT[0]["content"]
    with pytest.raises(TemplateFailure, match="TooMuchWork"):
        later.render(CHAT, opened=True)
    assert later.render(CHAT[:1], opened=True) == CHAT[0]["content"], "the next conversation has a bound of its own"


def test_a_recursive_loop_is_refused_since_its_steps_are_not_counted() -> None:
    with pytest.raises(TemplateFailure, match="a recursive loop is not supported"):
        ChatTemplate("{% for a in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}", SPECIALS)


@pytest.mark.parametrize("source", [TEMPLATE, LLAMA, MACROS, PARTS], ids=["llada", "llama", "macros", "parts"])
def test_a_long_conversation_is_within_the_bound(source: str) -> None:
    pair = [{"role": "user", "content": "word " * 200}, {"role": "assistant", "content": "</think>" * 100}]
    template = ChatTemplate(source, SPECIALS)
    for chat in (pair * 500, [{"role": "user", "content": "x" * 2_000_000}], [{"role": "user", "content": ""}]):
        assert template.render(chat, opened=True)


NUMBERS = {
    "tojson": ("{{ v | tojson }}", "9007199254740991"),
    "text": ("{{ v }}", "9007199254740991"),
    "joined": ("{{ 'a' ~ v }}", "a9007199254740991"),
    "a list": ("{{ [v, [v]] }}", "[9007199254740991, [9007199254740991]]"),
    "a percent format": ("{{ '%s, %d' % (v, v) }}", "9007199254740991, 9007199254740991"),
    "a format": ("{{ '{} {{}}'.format(v) }}", "9007199254740991 {}"),
    "a format filter": ("{{ '%d' | format(v) }}", "9007199254740991"),
    "a macro": ("{% macro f(n) %}{{ n | string }}{% endmacro %}{{ f(v) }}{{ f(n=v) }}", "9007199254740991" * 2),
    "a namespace": ("{% set ns = namespace(n=v) %}{{ ns.n }}", "9007199254740991"),
    "a default": ("{{ v | default(0) }}{{ none | default(v, true) }}", "9007199254740991" * 2),
    "a dict": ("{{ dict(a=v).get('a', v) }}", "9007199254740991"),
    "replaced": ("{{ 'x' | replace('x', v | string) }}", "9007199254740991"),
}


@pytest.mark.parametrize(("source", "expected"), NUMBERS.values(), ids=NUMBERS)
@pytest.mark.parametrize("sign", ["", "-"], ids=["above", "below"])
def test_a_large_number_that_is_only_written_costs_its_digits(source: str, expected: str, sign: str) -> None:
    template = ChatTemplate("{{ messages[0].content }}{% if v is defined %}" + source + "{% endif %}", SPECIALS)
    said = template.render([{"role": "user", "content": ""}], opened=True, variables={"v": int(f"{sign}{2**53 - 1}")})
    assert said == expected.replace("9007", f"{sign}9007")


def test_a_number_with_many_digits_costs_them_each_time() -> None:
    template = ChatTemplate(
        "{{ messages[0].content }}{% for i in range(v | default(0)) %}{{ w }}{% endfor %}", SPECIALS
    )
    for times in (100, 99999):
        variables = {"v": times, "w": 10**4000}
        if times == 100:
            assert len(template.render(CHAT[:1], opened=True, variables=variables)) > 400_000
        else:
            with pytest.raises(TemplateFailure, match="TooMuchWork"):
                template.render(CHAT[:1], opened=True, variables=variables)
