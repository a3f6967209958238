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
import os
import shutil
import zipfile
from pathlib import Path

from choices import EXPORT_FORMATS
from hparams import Hyperparams
from runtime.cli import parse_flags, run_script
from runtime.errors import InputError
from runtime.files import (
    check_may_make,
    check_utf8,
    durable_replace,
    fsync,
    make_folder,
    temp_path,
)
from runtime.flags import Flags, check_not_given, flag


@dataclasses.dataclass(frozen=True)
class ExportFlags(Flags):
    """The flags of this script."""

    output: str = flag("exported/1", "folder or file to write, which must not exist yet", path=True)
    format: str = flag("saved_model", "format of the exported model", choices=EXPORT_FORMATS)
    quantization: str = flag(
        "float32",
        "type of the matrices, for the formats that have a choice",
        choices=("float32", "int8"),
        needs=dict(format=tuple(name for name, row in EXPORT_FORMATS.items() if row.quantizes)),
        remedy="Leave it out",
    )


def settle(flags):
    """Find the model, and check the output, before TensorFlow is loaded; see `main`."""
    options, flags = ExportFlags.separate(flags)
    choice = EXPORT_FORMATS[options.format]
    check_not_given(flags, choice.refused, "is given to the program that loads the model")
    models = find_trained(flags)
    choice.check_ready(models, options.format, options.quantization)
    if models[0].hp:
        options.check_needs(models[0].hp)
    check_new(options.output, choice.suffix)
    check_utf8(options.output)
    check_may_make(Path(options.output).parent)
    return options, models


def check_new(path, suffix):
    """Raise InputError if the output exists, also as a link to a missing file.

    Args:
      suffix: end of the name that it must have; "" for any.
    """
    if suffix and Path(path).suffix != suffix:
        raise InputError(f"{path}: is the name of a file, which must end in {suffix}. Add it")
    if os.path.lexists(path):
        raise InputError(f"{path}: already exists. Delete it, or choose another --output")


if __name__ == "__main__":  # before the slow imports, see runtime/cli.py
    settled = parse_flags(__doc__, settle, Hyperparams, ExportFlags, reads_model=True)

import tensorflow as tf

from inference import describe_checkpoints, describe_decoding, load_model
from model_card import write_card


def main(options, models):
    """Write the model.

    Args:
      options: ExportFlags.
      models: list of `Trained`.

    Raises:
      OSError: the output cannot be written.
    """
    choice, output = EXPORT_FORMATS[options.format], Path(options.output)
    loaded = load_model(models)
    options.check_needs(loaded.hp)
    more = dict(quantization=options.quantization) if choice.quantizes else {}
    make_folder(output.parent)
    temporary = temp_path(output)
    try:
        choice.load()(loaded, temporary, **more)
        write_card(loaded, temporary)
        written = pack(temporary, output.stem) if choice.suffix else temporary
        for path in filter(Path.is_file, temporary.rglob("*")):
            fsync(path)
        durable_replace(written, output)
    except (OSError, tf.errors.OpError) as error:
        reason, *_ = str(error).splitlines()
        raise OSError(
            f"{output}: cannot be written ({reason}). Free some space, or choose another --output"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    description = describe_checkpoints(loaded.paths)
    description = describe_decoding(loaded) if choice.has_search else description
    print(", ".join([f"{output}: {description}", *more.values()]))


def pack(folder, name) -> Path:
    """Write a zip file of a folder into it, and return its path.

    Args:
      name: of the folder in the zip file.
    """
    files = sorted(filter(Path.is_file, folder.rglob("*")))
    path = folder / "package.zip"
    with zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            archive.write(file, Path(name) / file.relative_to(folder))
    return path


if __name__ == "__main__":
    run_script(main, *settled)
