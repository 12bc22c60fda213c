"""The page on the conformance kit says of each check what its failures say."""

from pathlib import Path

from engine_core_author.rules import ALGORITHM_RULES, PASS_RULES

PAGE = Path(__file__).parents[3] / "docs" / "authors" / "testing.md"
RULES = {**ALGORITHM_RULES, **{f"{check} (of a pass)": rule for check, rule in PASS_RULES.items()}}


def sections():
    """Return the text below each heading of a check, in one line."""
    parts = PAGE.read_text(encoding="utf-8").split("\n### ")[1:]
    return {part.partition("\n")[0]: " ".join(part.partition("\n")[2].partition("\n## ")[0].split()) for part in parts}


def test_each_check_has_its_section_in_the_order_of_the_kit():
    assert list(sections()) == list(RULES)


def test_a_section_says_the_rule_why_and_how_to_fix_it():
    for check, text in sections().items():
        rule = RULES[check]
        assert text.startswith(f"{rule.says} *How:* "), check
        assert f"*Why:* {rule.why} *To fix it:* {rule.remedy}" in text
