"""The table of policies in docs/do/resume.md is that of the contract."""

import re
from pathlib import Path

from herringbone_contract.faults.policies import FAULTS

PAGE = Path(__file__).parents[2] / "docs" / "do" / "resume.md"


def test_the_page_has_every_kind_with_its_answers():
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ((?:`\w+`(?:, )?)+) \|$", PAGE.read_text(), re.MULTILINE)
    found = {kind: tuple(re.findall(r"`(\w+)`", answers)) for kind, answers in rows if kind in FAULTS}
    assert found == {kind: fault.answers for kind, fault in FAULTS.items()}
