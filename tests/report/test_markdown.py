"""The report for an issue: read back by a Markdown parser, it holds what it should and no more."""

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from test_page import ATTACK, PAGES
from test_text import CASES

from optdoctor.report import markdown, slots
from optdoctor.report.verdict import sentences
from optdoctor.report.wording import plain

PING = (
    "@ann fixes #12, GH-7, pytorch/pytorch#8860: https://evil.example www.evil.example :tada: $x$"
)


@pytest.mark.parametrize("name", PAGES)
def test_no_html_link_or_mention_of_a_log_survives(name: str) -> None:
    text = markdown.render([PAGES[name]], cost=PING)
    outside = re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    outside = re.sub(r"(?<![`\\])(`+)(?!`).+?(?<!`)\1(?!`)", "", outside)
    outside = outside.replace("<!-- -->", "\0").replace("<span>$</span>", "")
    assert "<" not in outside
    assert not re.search(r"@\w|#\d|GH-\d|://|www\.|:tada:|\$|(?<!\\)\[", outside)
    assert not re.search("[\x1b\x9b\u202e\u2066\ud800\t]", text)
    text.encode("utf-8")


def leaves(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from leaves(token.children or [])


@pytest.mark.parametrize("name", PAGES)
def test_a_parser_finds_headings_tables_and_code_and_nothing_of_the_log(name: str) -> None:
    text = markdown.render([PAGES[name]], cost=PING)
    tokens = list(leaves(MarkdownIt("commonmark").enable("table").parse(text)))
    kinds = {token.type for token in tokens}
    assert kinds.isdisjoint({"link_open", "image", "html_block", "blockquote_open", "code_block"})
    html = {token.content for token in tokens if token.type == "html_inline"}
    assert html <= {"<!-- -->", "<span>", "</span>"}
    words = "".join(t.content for t in tokens if t.type in ("text", "text_special", "code_inline"))
    assert PING in words
    if name == "attack":
        assert words.count(plain(ATTACK)) > 5


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("a_b*c*`d`", r"a\_b\*c\*\`d\`"),
        ("a|b", r"a\|b"),
        ("[x](y)", r"\[x\](y)"),
        ("<b>&amp;", "&lt;b&gt;&amp;amp;"),
        ("@ann", "@<!-- -->ann"),
        ("# title", r"\# title"),
        ("- item", r"\- item"),
        ("12. item", r"12\. item"),
        ("+1", r"\+1"),
        ("> quote", "&gt; quote"),
        ("    indented", "indented"),
        ("two\n\nparagraphs", "two paragraphs"),
        ("7.1 % (limit 0.2 %)", "7.1 % (limit 0.2 %)"),
    ],
)
def test_words_stay_words(words: str, shown: str) -> None:
    assert markdown.escaped(words) == shown


@pytest.mark.parametrize("words", ["a`b", "`a`", "``", "a|b", "x``y`z"])
def test_code_is_fenced_by_more_backticks_than_it_holds(words: str) -> None:
    fence, inner, close = re.fullmatch("(`+)(.*?)(`+)", markdown.code(words)).groups()
    assert fence == close
    assert inner.strip(" ") == words
    assert fence not in re.findall("`+", words)


def test_a_block_is_fenced_by_more_backticks_than_it_holds() -> None:
    assert markdown.block(["a", "````", "b"]).splitlines()[0] == "`````"
    assert markdown.block(["a\nb"]).splitlines() == ["```", "a b", "```"]


@pytest.mark.parametrize("name", PAGES)
def test_every_row_of_a_table_has_its_columns(name: str) -> None:
    widths = []
    for line in markdown.render([PAGES[name]]).splitlines():
        if not line.startswith("| "):
            widths.clear()
            continue
        widths.append(len(re.findall(r"(?<!\\)\|", line)))
        assert widths[0] == widths[-1]


@pytest.mark.parametrize("name", CASES)
def test_it_says_what_the_terminal_says(name: str) -> None:
    diagnosis, trace = CASES[name]
    text = markdown.render([CASES[name]])
    said = sentences(diagnosis, trace, slots.ordered(diagnosis))[1]
    for sentence in " ".join(said).split(". "):
        assert markdown.escaped(sentence).rstrip(".") in text
    for finding in slots.ordered(diagnosis):
        assert f"`{finding.rule}`" in text
        assert f"- since: {markdown.escaped(slots.since(finding, trace))}" in text


def test_the_evidence_is_a_table_and_the_treatment_is_code() -> None:
    text = markdown.render([CASES["float16"]])
    assert re.search(r"^\| Seen \| Value \| Limit \| Channel \|\n\| --- ", text, re.MULTILINE)
    assert "| 20.1 % | at most 0.2 % | `moment2_zero` |" in text
    assert "```python\nTrainingArguments(adam_epsilon=0.0001)\n```" in text
    assert "Basis: measured: " in text
    assert text.count("\n## ") == 0
    assert text.startswith("## SICK: NaN loss")


def test_a_pipe_in_a_name_does_not_end_the_cell() -> None:
    diagnosis, trace = CASES["float16"]
    trace = replace(trace, facts={**trace.facts, "optimizer": "Adam|W"})
    assert r"| `optimizer` | `Adam\|W` |" in markdown.render([(diagnosis, trace)])


def test_several_runs_begin_with_a_table_and_errors_are_told() -> None:
    runs = [CASES[name] for name in ("nan-pulse healthy", "float16", "short")]
    text = markdown.render(runs, [("/home/ann/logs/bad.log", ATTACK, "give a log")])
    assert text.startswith("## 1 of 3 runs is sick, 1 healthy, 1 unknown.")
    assert "### Could not be read" in text
    assert "`logs/bad.log`" in text
    assert "/home" not in text
    assert re.findall(r"^### (SICK|UNKNOWN|HEALTHY)", text, re.MULTILINE) == [
        "SICK",
        "UNKNOWN",
        "HEALTHY",
    ]
    assert markdown.render([], [("x", "it is empty", "give a log")]).startswith("## No run was")
