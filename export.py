"""Export the model in logdir for other programs.

    python export.py --logdir logdir --output exported/1
    python export.py --logdir logdir --output exported/ctranslate2 --format ctranslate2
    python export.py --logdir logdir --output exported/huggingface --format huggingface
    python export.py --logdir logdir --output exported/onnx --format onnx
    python export.py --logdir logdir --output exported/de_en.argosmodel --format argos
    python export.py --logdir logdir --output exported/logdir --format logdir

The TensorFlow SavedModel takes sentences and returns translations. It contains the tokenizer:
a program that loads it needs only tensorflow and tensorflow-text. The CTranslate2 model takes
tokens and returns tokens. Its folder also contains the sentencepiece model, if there is one. The
Hugging Face folder is for the Auto classes of transformers, or for converters to other formats.
The ONNX folder is for ONNX Runtime, and is a page that translates in the browser.
The package of Argos Translate is one file, which LibreTranslate reads, too.
The logdir is for this project: the parameters alone, to be given away."""

import dataclasses
import importlib
import os
import shutil
import tempfile
from pathlib import Path

from hparams import READER_FLAGS, Hyperparams, check_saved_flags
from runtime.errors import InputError
from runtime.flags import Flags, flag, parse_flags

# The modules whose function `write` writes a folder.
FORMATS = dict(
    saved_model="interop.saved_model",
    ctranslate2="interop.ctranslate2_model",
    huggingface="interop.huggingface_model",
    onnx="interop.onnx_model",
    argos="interop.argos_package",
    logdir="interop.logdir",
)
QUANTIZED = ("ctranslate2", "onnx", "argos")  # can store the matrices in int8
ENSEMBLES = ("saved_model", "onnx")  # can hold several models


@dataclasses.dataclass(frozen=True)
class ExportFlags(Flags):
    """The flags of this script."""

    output: str = flag("exported/1", "folder or file to write, which must not exist yet")
    format: str = flag("saved_model", "format of the exported model", choices=tuple(FORMATS))
    quantization: str = flag(
        "float32",
        f"type of the matrices, for the formats {', '.join(QUANTIZED)}",
        choices=("float32", "int8"),
    )

    def __post_init__(self):
        super().__post_init__()
        if self.quantization != "float32" and self.format not in QUANTIZED:
            raise InputError(f"quantization is for {', '.join(QUANTIZED)}. Leave it out")
        if os.path.lexists(self.output):
            raise InputError(f"{self.output}: already exists. Delete it, or choose another path")


if __name__ == "__main__":  # before TensorFlow is loaded, which takes seconds
    own, names = ExportFlags, READER_FLAGS
    given = parse_flags(__doc__, own, hparams=Hyperparams, names=names, check=check_saved_flags)

import tensorflow as tf

from inference import describe_checkpoints, load_model
from model_card import make_card
from runtime.cli import run_script


def main(given):
    """Write the model.

    Args:
      given: dict, the flags of the command line.

    Raises:
      OSError: the output cannot be written.
    """
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
            importlib.import_module(FORMATS[options.format]).write(loaded, folder, **more)
            (folder / "README.md").write_text(make_card(loaded), "utf-8")
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
