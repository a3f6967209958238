"""Packages of Argos Translate."""

import json
import zipfile

import ctranslate2
import sentencepiece

from conftest import slow
from helpers import read_test_sentences, run_translate
from processes import forked_script


def translate_as_argos_does(folder, lines, beam):
    """Translate as its class PackageTranslation does, but for the beam; a line is a sentence."""
    processor = sentencepiece.SentencePieceProcessor(str(folder / "sentencepiece.model"))
    translator = ctranslate2.Translator(str(folder / "model"))
    results = translator.translate_batch(
        [processor.encode(line, out_type=str) for line in lines],
        replace_unknowns=True,
        beam_size=beam,
        num_hypotheses=beam,
        length_penalty=0.2,
    )
    texts = [processor.decode_pieces(result.hypotheses[0]) for result in results]
    return [text.replace("▁", " ").removeprefix(" ") for text in texts]


@slow
def test_a_package_is_one_folder_that_translates(trained, tmp_path):
    flags, output = trained("tiny"), tmp_path / "translate-de_en.argosmodel"
    done = forked_script("export.py", logdir=flags["logdir"], format="argos", output=output)
    assert done.returncode == 0 and f"{output}: model_epoch" in done.stdout, done.stderr
    assert [*tmp_path.iterdir()] == [output]
    with zipfile.ZipFile(output) as archive:
        archive.extractall(tmp_path / "packages")
    (folder,) = (tmp_path / "packages").iterdir()
    assert folder.name == "translate-de_en"
    metadata = json.loads((folder / "metadata.json").read_text("utf-8"))
    names = [metadata[name] for name in ("from_code", "from_name", "to_code", "to_name")]
    assert names == ["de", "German", "en", "English"]
    assert "Translation from de to en" in (folder / "README.md").read_text("utf-8")
    lines = read_test_sentences(flags["source_test"]).raw
    text = "".join(f"{line}\n" for line in lines).encode()
    ours, _ = run_translate(flags, text, protect=False, beam=1)
    theirs = translate_as_argos_does(folder, lines, beam=1)
    same = sum(a == b for a, b in zip(ours.splitlines(), theirs, strict=True))
    assert same >= 0.9 * len(lines) and len({*theirs}) > 5
