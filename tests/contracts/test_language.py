"""Tests of the language of code and documents: they contain none of the unclear phrases that this file lists."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PHRASES = {
    "is no X": r"(?<![Tt]here )\b(?:is|are|was|were) no (?!longer\b|more than\b)\w+",
    "anew": r"\b[Aa]new\b",
    "whoever": r"\b[Ww]h(?:o|om)ever\b",
    "for who": r"\b(?:[Ff]or|[Tt]o|[Oo]f|[Bb]y|[Ff]rom|[Ww]ith) who\b(?!=)",
    "a sentence without a subject": r"(?:^|(?<=[.!] )|(?<=[.!]\n))\s*(?:Who|Whose|Whom)\b(?![^.!]*\?)",
    "is told": r"\b(?:is|are|was|were|be|been|being|gets?|not) told\b",
}
PATTERNS = {name: re.compile(pattern, re.MULTILINE) for name, pattern in PHRASES.items()}
# Every match of a phrase contains one of these. Most files contain none, and need not be parsed.
HINT = re.compile(
    r"\b(?:is|are|was|were)\s+no\s|\b[Aa]new\b|\b[Ww]h(?:o|om)ever\b|\b(?i:for|to|of|by|from|with)\s+who\b"
    r"|\bWho(?:se|m)?\b|\btest who|\b(?:is|are|was|were|be|been|being|gets?|not)\s+told\b"
    r"|def [\w ]*\b(?:told|tell|said)\b"
)
FUNCTION = re.compile(r"(^|_)(told|tell|said)(_|$)")
QUOTING = {"tests/contracts/test_language.py"}  # names the phrases itself


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each comment, string and test name of a Python file, or (1, text) of any other file."""
    text = path.read_text()
    if not HINT.search(text.replace("_", " ")):
        return
    if path.suffix != ".py":
        yield 1, text
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.start[0], token.string.strip("#\"'rbfu ")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name.startswith("test_"):
                yield node.lineno, node.name.removeprefix("test_").replace("_", " ").capitalize()
            elif FUNCTION.search(node.name):
                yield node.lineno, f"a function is told: {node.name}"


def found_in(lines: Iterator[tuple[int, str]]) -> list[tuple[int, str, str]]:
    return [
        (line + text[: match.start()].count("\n"), name, text[max(0, match.start() - 30) : match.end() + 30])
        for line, text in lines
        for name, pattern in PATTERNS.items()
        for match in pattern.finditer(text)
    ]


def files() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [
        name
        for name in listed.stdout.split()
        if name.endswith((".py", ".md", ".html", ".txt", ".js", ".env"))
        and "/migrations/" not in name
        and name not in QUOTING
    ]


def test_texts_are_plain() -> None:
    checked = files()
    assert len(checked) > 1_000
    found = {name: hits for name in checked if (hits := found_in(texts(ROOT / name)))}
    assert found == {}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("3 is no port", "is no X"),
        ("Started anew.", "anew"),
        ("Ask whoever knows.", "whoever"),
        ("Answers for who asks.", "for who"),
        ("It waits. Who asks, waits too.", "a sentence without a subject"),
        ("The user is told why.", "is told"),
    ],
)
def test_each_phrase_is_found(text: str, name: str) -> None:
    assert [found for _, found, _ in found_in(iter([(1, text)]))] == [name]
    assert HINT.search(text)
    assert HINT.search(text)


@pytest.mark.parametrize("text", ["It is no longer there.", "Who may see this? Owners.", "There is no port."])
def test_plain_sentences_are_left_alone(text: str) -> None:
    assert found_in(iter([(1, text)])) == []
