"""Pages of results beside the suites that they were made by: a reading belongs to the numbers of its page."""

import hashlib
import json
import re
from pathlib import Path

import pytest

from mhex.lab.config.suite import packaged_suites, read_suite

RESULTS = Path(__file__).parents[3] / "docs" / "results"


def numbers_of(page: str) -> str:
    """The fingerprint of the numbers of a page, read from its tables."""
    numbers: list[list[str]] = []
    for chapter in page.split("\n## ")[1:]:
        label, _, text = chapter.partition("\n")
        for table in re.findall(r"(?:^\|.*\n)+", text.partition("\n### ")[0] + "\n", re.MULTILINE):
            head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines())
            for row in rows:
                for column, cell in zip(head[1:], row[1:], strict=True):
                    if column[-1:] in ("\u2191", "\u2193"):
                        numbers.append([label, row[0], column[:-2], cell.strip("*").removesuffix("\u2020")])
    return hashlib.sha256(json.dumps(sorted(numbers)).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", sorted(packaged_suites()))
def test_a_page_has_the_numbers_and_the_reading_of_its_suite(name: str) -> None:
    suite, page = read_suite(packaged_suites()[name]), (RESULTS / f"{name}.md").read_text(encoding="utf-8")
    assert f"Fingerprint of the numbers: `{suite.reading_of}`." in page
    assert numbers_of(page) == suite.reading_of
    assert f"\n## Reading\n\n{suite.reading.strip()}\n" in page
    assert page.startswith(f"# {suite.title}\n")
