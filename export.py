"""Export the model in logdir for other programs.

    python export.py --logdir logdir --output exported/1
    python export.py --logdir logdir --output exported/onnx --format onnx
    python export.py --logdir logdir --output exported/de_en.argosmodel --format argos

saved_model: for TensorFlow; it contains the tokenizer, takes sentences and returns translations.
ctranslate2: takes and returns tokens; the folder also has the sentencepiece model.
huggingface: for the Auto classes of transformers, or for converters to other formats.
onnx: for ONNX Runtime; the folder is also a page that translates in the browser.
argos: one file, a package of Argos Translate, which LibreTranslate reads, too.
logdir: for this project: the parameters alone, to be given away."""

import dataclasses
import os
import shutil
import tempfile
from pathlib import Path

from hparams import Choice, parse_reader_flags
from support.errors import InputError
from support.flags import Flags, flag

FORMATS = dict(  # the function that writes a format into an empty folder
    saved_model="formats.saved_model.write",
    ctranslate2="formats.ctranslate2_model.write",
    huggingface="formats.marian.write",
    onnx="formats.onnx_model.write",
    argos="formats.ctranslate2_model.write_argos",
    logdir="formats.logdir.write",
)
QUANTIZED = ("ctranslate2", "onnx", "argos")  # can store the matrices in int8
ENSEMBLES = ("saved_model", "onnx")  # can hold several models


@dataclasses.dataclass(frozen=True)
class ExportFlags(Flags):
    """The flags of this script."""

    output: str = flag("exported/1", "folder or file to write, which must not exist yet")
    format: str = flag("saved_model", "format of the exported model", choices=FORMATS)
    quantization: str = flag(
        "float32",
        f"type of the matrices, for the formats {', '.join(QUANTIZED)}",
        choices=("float32", "int8"),
    )

    def problems(self):
        if self.quantization != "float32" and self.format not in QUANTIZED:
            yield f"quantization is for {', '.join(QUANTIZED)}. Leave it out"
        if os.path.lexists(self.output):
            yield f"{self.output}: already exists. Delete it, or choose another path"


if __name__ == "__main__":  # before TensorFlow is loaded
    given = parse_reader_flags(__doc__, ExportFlags)

import tensorflow as tf

from formats.model_card import make_card
from support.cli import run_script
from translation.inference import describe_checkpoints, load_model


def main(given):
    """Write the model into a temporary folder, which then gets the name of the output."""
    options = ExportFlags.of(given)
    output = Path(options.output)
    loaded = load_model(given)
    if len(loaded.folders) > 1 and options.format not in ENSEMBLES:
        raise InputError(f"logdir names several models, and {options.format} has one. Name one")
    more = dict(quantization=options.quantization) if options.format in QUANTIZED else {}
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=output.parent) as temporary:
            folder = Path(temporary) / output.stem
            folder.mkdir()
            Choice(FORMATS[options.format]).load()(loaded, folder, **more)
            readme = folder / "README.md"
            more_text = readme.read_text("utf-8") if readme.exists() else ""  # about the format
            readme.write_text(make_card(loaded) + more_text, "utf-8")
            if options.format == "argos":
                folder = shutil.make_archive(folder, "zip", temporary, output.stem)
            os.replace(folder, output)
    except OSError as error:  # of a file in the temporary folder
        raise OSError(error.errno, error.strerror, str(output)) from None
    except tf.errors.OpError:
        raise OSError(f"{output}: cannot be written. Free some space on the disk") from None
    print(", ".join([f"{output}: {describe_checkpoints(loaded.paths)}", *more.values()]))


if __name__ == "__main__":
    run_script(main, given)
