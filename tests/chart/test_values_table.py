"""The table of values in the chart's README: generated, checked, and never half."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from tests.support.cluster.chart import CHART
from tools import chart_values

ROOT = CHART.parents[1]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A repository of three files."""
    folder = tmp_path / chart_values.CHART
    folder.mkdir(parents=True)
    for name in ("README.md", "values.yaml", "values.schema.json"):
        shutil.copy(CHART / name, folder)
    return tmp_path


def test_the_committed_table_is_current_and_has_every_value() -> None:
    assert chart_values.main([str(ROOT), "--check"]) == 0
    page = (CHART / "README.md").read_text()
    assert [name for name in yaml.safe_load((CHART / "values.yaml").read_text()) if f"`{name}" not in page] == []
    assert "| `nodeFailureSeconds` | `15` | " in page
    assert '| `image.repository` | `""` | ' in page


def test_a_changed_default_is_found_and_written(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = copy / chart_values.CHART / "values.yaml"
    values.write_text(values.read_text().replace("nodeFailureSeconds: 15", "nodeFailureSeconds: 16"))
    assert chart_values.main([str(copy), "--check"]) == 1
    assert "the table of values is not current; run make generate" in capsys.readouterr().err
    assert chart_values.main([str(copy)]) == 0
    assert "| `nodeFailureSeconds` | `16` | " in (copy / chart_values.CHART / "README.md").read_text()
    assert chart_values.main([str(copy), "--check"]) == 0


@pytest.mark.parametrize("mark", [chart_values.BEGIN, chart_values.END])
def test_a_page_without_a_mark_is_refused(copy: Path, mark: str) -> None:
    page = copy / chart_values.CHART / "README.md"
    page.write_text(page.read_text().replace(mark, ""))
    with pytest.raises(ValueError, match="found no '<!-- Generated"):
        chart_values.main([str(copy)])
