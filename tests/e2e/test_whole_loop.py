"""The demo is the main job, end to end: every claim that it prints must hold, and a claim that fails must fail it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from examples.demo.__main__ import parse_arguments
from examples.demo.page import Claim, Figure, render
from examples.demo.picture import draw
from examples.demo.record import Kind, Record

ROOT = Path(__file__).resolve().parents[2]
DEMO_SECONDS = 600


@pytest.mark.timeout(DEMO_SECONDS + 30)
def test_every_claim_of_the_demo_holds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.demo", "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEMO_SECONDS, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    facts = json.loads((tmp_path / "figures.json").read_text())
    assert len(facts["claims"]) >= 15
    assert [c["text"] for c in facts["claims"] if not c["holds"]] == []
    assert [f["name"] for f in facts["figures"] if f["value"] == "not seen"] == []
    page = (tmp_path / "timeline.html").read_text()
    ET.parse(tmp_path / "timeline.svg")
    assert not re.findall(r"""(?:src|href)=["']?(?!#)""", page), "the page must need nothing but itself"


def test_a_claim_that_fails_fails_the_demo() -> None:
    from examples.demo.scenario import Outcome

    outcome = Outcome()
    outcome.claim("one and one is two", 1 + 1 == 2, 2)
    assert outcome.exit_code() == 0
    outcome.claim("one and one is three", 1 + 1 == 3, 2)
    assert outcome.exit_code() == 1
    assert Outcome().exit_code() == 1, "a demo that claims nothing shows nothing"


def test_page_escapes_what_it_shows() -> None:
    record = Record()
    record.mark("you", Kind.FAULT, "<script>alert(1)</script>")
    record.begin("worker 0", Kind.TRAIN, "a < b")
    page = render(
        record,
        verdict="1 of 1",
        claims=[Claim("<b>", holds=True, seen="&")],
        figures=[Figure("f", "<i>")],
        buckets={"productive": 1.0},
    )
    assert "<script>" not in page
    assert "<i>" not in page.replace("<i style", "")
    picture = ET.fromstring(draw(record))
    words = [e.text or "" for e in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert any(w.endswith("you: <script>alert(1)</script>") for w in words)


@pytest.mark.parametrize("arguments", [["--steps", "0"], ["--every-steps", "-1"], ["--steps", "many"]])
def test_wrong_arguments_are_refused_by_name(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(arguments)
    said = capsys.readouterr().err
    assert arguments[0] in said
    assert arguments[1] in said
