"""Write a model as a package of Argos Translate, which LibreTranslate also reads.

The package is a zip file of this folder:

    metadata.json          languages
    sentencepiece.model    splits sources, and joins translations
    model                  the folder of CTranslate2
    README.md              the card of the model
"""

import json
from pathlib import Path

from interop import ctranslate2_model
from runtime.errors import InputError

# The names that Argos Translate shows. A language without one is shown by its code.
NAMES = dict(
    cs="Czech",
    de="German",
    en="English",
    es="Spanish",
    fr="French",
    ga="Irish",
    it="Italian",
    ja="Japanese",
    nl="Dutch",
    pl="Polish",
    pt="Portuguese",
    ru="Russian",
    uk="Ukrainian",
    yue="Cantonese",
    zh="Chinese",
)


def write(loaded, path, quantization="float32"):
    """Write the folder; arguments as in `ctranslate2_model.write`."""
    path, hp = Path(path), loaded.hp
    if hp.tokenizer != "bpe":
        raise InputError("Argos Translate needs subwords. Export with --format saved_model")
    path.mkdir()
    model = path / "model"
    ctranslate2_model.write(loaded, model, quantization)
    for vocab in dict.fromkeys(loaded.vocabs):
        (model / vocab.path.name).unlink()
    # It joins the subwords of a translation by their texts alone.
    (path / "sentencepiece.model").write_bytes(loaded.vocabs[0].content)
    metadata = dict(
        package_version="1.0",
        argos_version="1.5",
        from_code=hp.source_lang,
        from_name=NAMES.get(hp.source_lang, hp.source_lang),
        to_code=hp.target_lang,
        to_name=NAMES.get(hp.target_lang, hp.target_lang),
    )
    text = json.dumps(metadata, ensure_ascii=False, indent=2)
    (path / "metadata.json").write_text(f"{text}\n", "utf-8")
