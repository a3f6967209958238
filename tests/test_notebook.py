"""tutorial.ipynb runs from its first cell to its last one, and its stored outputs are small."""

import json
import re
import shutil

import pytest

from conftest import slow
from processes import ROOT

NOTEBOOK = ROOT / "tutorial.ipynb"
MAX_BYTES = 150_000
LONG, SHORT = "range(1, 4)", "range(1, 2)"  # epochs


def outputs_of(cell) -> list[str]:
    """The text of the outputs of a cell."""
    texts = [output.get("text") or output["data"]["text/plain"] for output in cell["outputs"]]
    return ["".join(text) for text in texts]


def test_the_stored_outputs_are_those_of_a_run():
    notebook = json.loads(NOTEBOOK.read_text("utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} == {"stream", "display_data"}
    text = "\n".join(text for cell in cells for text in outputs_of(cell))
    assert not re.search(r"Warning|Traceback|/(root|home)/", text)
    (bleu,) = re.findall(r"^BLEU = ([\d.]+)", text, re.MULTILINE)
    assert float(bleu) > 90 and "The woman did not read the letter" in text
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    assert NOTEBOOK.stat().st_size < MAX_BYTES


@slow
def test_the_notebook_runs(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    shutil.copy(ROOT / "mini.py", tmp_path)  # it needs no other file
    text = NOTEBOOK.read_text("utf-8")
    assert text.count(LONG) == 1
    text = text.replace(LONG, SHORT)
    notebook = nbformat.reads(text, 4)
    client = nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": tmp_path}}
    )
    client.execute()  # raises the error of a cell
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(cells) > 10 and all(cell.outputs for cell in cells[1:])
    (same,) = [outputs_of(cell) for cell in cells if "by_hand(x) - layer" in cell.source]
    assert float(same[0].split()[-1]) < 1e-5
